"""The metaparameters: parameters that Puppet accepts for every resource type and class.

Source: https://www.puppet.com/docs/puppet/7/metaparameter.html
"""

METAPARAMETERS = frozenset(
    (
        "alias",
        "audit",
        "before",
        "consume",
        "export",
        "loglevel",
        "noop",
        "notify",
        "require",
        "schedule",
        "stage",
        "subscribe",
        "tag",
    )
)
