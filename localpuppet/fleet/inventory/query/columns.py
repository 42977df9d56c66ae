"""The columns of each entity, as PuppetDB 7.12 and 8 have them, and how entities are related.

- A column that localpuppet does not have is rejected by name when a query is parsed. It never looks
  like an empty one.
"""

from collections.abc import Mapping

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.inventory.query.tree import Entity


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# The columns of `nodes` that come from reports and not from an entry.
OF_REPORTS = _names(
    "report_timestamp report_environment latest_report_status latest_report_noop "
    "latest_report_noop_pending latest_report_corrective_change latest_report_hash "
    "latest_report_job_id cached_catalog_status"
)
COLUMNS: Mapping[Entity, tuple[str, ...]] = {
    Entity.INVENTORY: _names("certname timestamp environment facts trusted"),
    Entity.NODES: _names(
        "certname deactivated expired facts_environment catalog_environment facts_timestamp "
        "catalog_timestamp"
    )
    + OF_REPORTS,
    Entity.FACTS: _names("certname name value environment"),
    Entity.FACT_CONTENTS: _names("certname path name value environment"),
    Entity.FACTSETS: _names(
        "certname environment timestamp producer_timestamp producer facts hash"
    ),
    Entity.RESOURCES: _names(
        "certname type title exported environment tags file line parameters resource"
    ),
    Entity.ENVIRONMENTS: _names("name"),
    Entity.FACT_NAMES: _names("name"),
    Entity.FACT_PATHS: _names("path name type"),
    Entity.PRODUCERS: _names("name"),
    Entity.REPORTS: _names(
        "hash certname environment status noop noop_pending corrective_change puppet_version "
        "report_format configuration_version start_time end_time producer_timestamp receive_time "
        "producer transaction_uuid catalog_uuid code_id job_id cached_catalog_status type metrics "
        "logs resource_events"
    ),
    Entity.EVENTS: _names(
        "certname report environment configuration_version run_start_time run_end_time "
        "report_receive_time timestamp status corrective_change resource_type resource_title "
        "property name old_value new_value message file line containment_path containing_class"
    ),
    Entity.EVENT_COUNTS: _names("subject_type subject failures successes noops skips"),
    Entity.AGGREGATE_EVENT_COUNTS: _names("summarize_by failures successes noops skips total"),
    Entity.CATALOGS: _names(
        "certname version hash transaction_uuid catalog_uuid code_id job_id environment "
        "producer_timestamp producer resources edges"
    ),
    Entity.EDGES: _names("certname relationship source_type source_title target_type target_title"),
}
# A column for conditions only: one of the row's tags.
TAG = "tag"
# A column for conditions in AST form: a whole parameter; `parameters.x` may be a part of one.
PARAMETER = "parameter"
# Whether a row is of the newest report of its node.
LATEST = "latest_report?"
# Whether the node of a report or event is `active`, or was forgotten: `inactive`.
NODE_STATE = "node_state"
# Columns that conditions can use and results do not have.
_CONDITION_ONLY: Mapping[Entity, tuple[str, ...]] = {
    Entity.RESOURCES: (TAG,),
    Entity.FACT_PATHS: ("depth",),
    Entity.REPORTS: (LATEST, NODE_STATE),
    Entity.EVENTS: (LATEST, NODE_STATE),
}
# Columns that results have and conditions cannot use.
_RESULT_ONLY: Mapping[Entity, tuple[str, ...]] = {
    Entity.FACTSETS: ("facts",),
    Entity.REPORTS: ("metrics", "logs", "resource_events"),
    Entity.CATALOGS: ("resources", "edges"),
}
# Columns that are null in each row: a condition on one would look like an empty answer.
_UNKNOWN: Mapping[Entity, tuple[str, ...]] = {
    Entity.EVENTS: _names("property name old_value new_value message containment_path"),
}
# Columns with JSON values, which dotted fields may enter.
NESTED = frozenset({"facts", "trusted", "parameters"})
# Columns with lists, whose elements conditions compare.
LISTS = frozenset({"tags"})
# Columns with times in the form of `show_epoch`. The change of a time is not a new answer.
TIMES = frozenset(
    _names(
        "catalog_timestamp end_time expired facts_timestamp producer_timestamp receive_time "
        "report_receive_time report_timestamp run_end_time run_start_time start_time timestamp"
    )
)
# Columns with numbers, and facts, whose values may be numbers.
NUMBERS = frozenset(_names("depth failures line noops report_format skips successes total value"))

_WITHOUT_EXPIRY = "facts do not expire in localpuppet"
_ABSENT: Mapping[Entity, Mapping[str, str]] = {
    Entity.NODES: {"expires_facts": _WITHOUT_EXPIRY, "expires_facts_updated": _WITHOUT_EXPIRY},
}


# Entities whose rows are the different values of a column, with the entities that have it.
_VALUES = {Entity.ENVIRONMENTS: "environment", Entity.PRODUCERS: "producer"}
# Other relationships than by certname: entity → related entity → columns of both.
_RELATED: Mapping[Entity, Mapping[Entity, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    Entity.FACTS: {Entity.FACT_CONTENTS: (("certname", "name"), ("certname", "name"))},
    Entity.FACT_CONTENTS: {Entity.FACTS: (("certname", "name"), ("certname", "name"))},
    Entity.FACT_PATHS: {
        Entity.FACTS: (("name",), ("name",)),
        Entity.FACT_CONTENTS: (("path",), ("path",)),
    },
    Entity.REPORTS: {Entity.EVENTS: (("hash",), ("report",))},
    Entity.EVENTS: {Entity.REPORTS: (("report",), ("hash",))},
}


def check_column(entity: Entity, column: str) -> str:
    """Return a column's name if conditions or results of the entity have it."""
    if column in COLUMNS[entity] or column in _CONDITION_ONLY.get(entity, ()):
        return column
    reason = _ABSENT.get(entity, {}).get(column)
    if reason is not None:
        raise InvalidInputError(f"the field {column} of {entity.value} is not supported: {reason}")
    raise InvalidInputError(
        f"{column[:40]!r} is not a field of {entity.value}",
        hint=f"it has {', '.join(COLUMNS[entity])}",
    )


def check_in_condition(entity: Entity, column: str) -> None:
    """Reject a column that conditions cannot use."""
    if column in _UNKNOWN.get(entity, ()):
        raise InvalidInputError(
            f"a condition on the field {column} of {entity.value} is not supported: run summaries"
            " do not have it"
        )
    if column in _RESULT_ONLY.get(entity, ()):
        raise InvalidInputError(f"the field {column} of {entity.value} is for results only")


def check_in_result(entity: Entity, column: str) -> None:
    """Reject a column that results do not have."""
    if column in _CONDITION_ONLY.get(entity, ()):
        raise InvalidInputError(f"the field {column} of {entity.value} is for conditions only")


def related_columns(entity: Entity, other: Entity) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of both entities by which an implicit subquery relates them."""
    if other in _RELATED.get(entity, {}):
        return _RELATED[entity][other]
    for item, columns in ((other, COLUMNS[entity]), (entity, COLUMNS[other])):
        column = _VALUES.get(item)
        if column in columns:
            return ((column,), ("name",)) if item is other else (("name",), (column,))
    if "certname" in COLUMNS[entity] and "certname" in COLUMNS[other]:
        return ("certname",), ("certname",)
    raise InvalidInputError(f"{entity.value} and {other.value} are not related", hint="use 'in'")
