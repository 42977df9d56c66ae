"""The words of the messages of Puppet and of the programs that it calls.

A word is here because Puppet 7's sources use it in several messages, or because apt, useradd,
systemd or the kernel use it for failures. Any other word may be a secret value.
"""

_TEXT = """
    a about absent absolute accept accepts access account acquire action actual add added
    additional address after again aix alias all allow allowed alphanumeric already an and
    another answer any api appears applicable application apply apt archives are argument
    arguments array as assign assignable assignment ast at attempt attempts attribute attributes
    authorized available back backend backup bad base be because been before being between
    binary block boolean both broken building busy but by byte cache cached call callable called
    calling can candidate cannot case catalog certificate certificates change changed changes
    character characters check checker checksum child class classes client code collection comma
    command comparable compare compilation compile compiled compiling component conf config
    configuration conflicts connect connection constant contain containing contains content
    contents context contract control convert converted copying copyright core correct corrupt
    could create created creates creating crls cron current currently custom cycle dangling data
    date declaration declared default defaults define defined definition definitions delete
    deleted denied dependencies dependency depends deprecated destroy detail details detected
    determine device did diff different directly directories directory disable disabled display
    dmgs do docs does doesn download downloaded downloading dpkg dump dumped duplicate either
    empty enable end ensure entries entry enum environment environments epp equality error
    errors evaluate evaluated evaluating evaluation event events example exceeded exceeds
    exception execution exist existing exists exit exiting expected expects expired expression
    extension external face facts failed failure false fault feature fetch few field file
    filebucket files filesystem find fingerprint finish first fix float following for force
    forge form format found from frontend full fully function functional functions generate get
    getting gid given global got group groups handle handling handshake has hash have header
    held help heredoc hiera hierarchy hook host html http i id identifier if ignore ignored
    ignoring illegal implementation in include index indirection info information initialize
    inlining input install installed instance instances instead integer integers interact intern
    internal into invalid is issue issued it iterable iterator its job json key keys killed kind
    large last latest least left legacy length less letter letters level library limit line link
    links list lists load loaded loader loading local locally locate location lock locked log
    logs long lookup lowercase made main manage manifest many mapping mark masked match matches
    matching max may memory merge message metadata method middle migration mismatch missing mode
    modified module modules more mount multiple must name named names need needs negative
    network new nil no node non not notify notrun number numbers numeric object objects occurred
    of oids old on once one only open operation operator option optional options or os other out
    output outside override owner package packages parameter parameters parent parse parser
    parsing part pass passed path paths pattern patterns peer pending per permission permissions
    permitted pipe please postrun_command prefetch preparing prerun_command present print
    private problems proc process produce
    produced production profile property provide provided provider puppet purged qualified
    qualify query quota range read reading reassign received record recurse redacted redeclare
    redefine reference refused regexp registry relationship relative release releases reload
    remote remove removed removing render rendering report reported reports repository request
    requested required requires reserved reset resolution resolve resource resources response
    restart result resulted retrieve returned rights root route rule run running runtime same
    save scalar scope seconds section see segmentation selinux semantic sensitive separated
    serialized server service services set setting settings short should show signal signed
    single size skipping source sources space specification specified specify start starting
    state statement static status still stop stopped store strategy string strings struct
    subcommand submit successfully such suitable support supported supports symbol symbolic
    syntax system systemd takes target task tcp template temporary terminus text than that the
    their them there these this time timed timeout title to too transaction transition tree
    tried true trusted try trying tuple two type types uid unable unacceptable unavailable undef
    undefined unexpected uninstall unique unit unknown unless unmet unreachable unrecognized
    unsupported up update upgrade uri url use used user users using valid validate validation
    value values var variable variables variant verify version versions via waiting was were
    when where whether which while will with without word would write wrong yaml yet you
"""
WORDS = frozenset(_TEXT.split())
