#!/bin/sh
# Puppet's external node classifier: prints the node document that localpuppet computed.
#
# Puppet calls it with the node's name, LANG=C and no HOME. If it fails, Puppet shows its standard
# output and drops its standard error. So a missing document is a failure with a reason, never an
# empty catalog.
document=${LOCALPUPPET_NODE_DOCUMENT:-${0%/*}/../node.yaml}
if ! [ -r "$document" ]; then
    echo "enc.sh: $document is not readable; run 'localpuppet apply' or 'localpuppet enc > $document'"
    exit 1
fi
exec cat "$document"
