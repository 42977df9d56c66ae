"""The installed Puppet and its Ruby."""

from pathlib import Path

from localpuppet.node.puppet.installation import ruby_state


def test_the_state_changes_with_the_ruby_and_with_the_version_of_a_gem(tmp_path: Path) -> None:
    ruby, gems = tmp_path / "ruby3.1", tmp_path / "gems"
    ruby.write_text("3.1")
    specifications = gems / "3.1.0/specifications"
    specifications.mkdir(parents=True)
    (specifications / "hocon-1.3.gemspec").touch()
    before = ruby_state(ruby, [str(gems)])
    assert ruby_state(ruby, [str(gems)]) == before
    (specifications / "hocon-1.3.gemspec").rename(specifications / "hocon-1.4.gemspec")
    newer_gem = ruby_state(ruby, [str(gems)])
    ruby.write_text("3.1.2")
    assert len({before, newer_gem, ruby_state(ruby, [str(gems)])}) == 3
