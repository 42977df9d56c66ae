"""The parameters that Puppet takes for every resource, of whichever type, and for every class.

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
