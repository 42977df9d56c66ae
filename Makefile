# Aliases for daily work; the scripts do it all.
.PHONY: run test check benchmark
run:
	scripts/run
test:
	scripts/test
check:
	scripts/check
benchmark:
	scripts/setup test
	.venv/bin/python benchmarks/overhead.py
