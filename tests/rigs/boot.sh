#!/bin/sh
# Boots the systemd of a Debian in namespaces of its own, once for each line on standard input:
# boot.sh BASE CLONE. See tests/rigs/systemd.py.
#
# Prints, for each boot, the pid of that systemd. What it writes goes to memory, over BASE, and
# stays from boot to boot.
set -eu
base=$1 clone=$2
top=$(mktemp -d /tmp/lp-machine.XXXXXX)
mount -t tmpfs -o mode=755 machine "$top"
mkdir "$top/upper" "$top/work" "$top/root" "$top/cgroup"
mount -t overlay machine -o "lowerdir=$base,upperdir=$top/upper,workdir=$top/work" "$top/root"
mount -t cgroup2 cgroup2 "$top/cgroup"
own=$top/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/localpuppet-machine-$$
mkdir -p "$own" "$top/root/opt/localpuppet" "$top/root/var/log/journal"
: >"$top/root/etc/fstab"
echo web01.example.com >"$top/root/etc/hostname"
# Debian starts servers that were installed for other tests; there is no terminal, and the kernel is not ours.
for unit in etcd nats-server console-getty systemd-modules-load; do
    ln -sf /dev/null "$top/root/etc/systemd/system/$unit.service"
done
export top own clone

# shellcheck disable=SC2016 # expanded by the shell inside
while read -r _; do
    (
        echo 0 >"$own/cgroup.procs"
        # Whoever is killed takes the rest along: setpriv this one, --kill-child that systemd.
        exec setpriv --pdeathsig KILL unshare --mount --pid --cgroup --uts --ipc --net --fork --kill-child --propagation private sh -euc '
            read -r pid _ </proc/self/stat
            cd "$top/root"
            mount --bind . .
            cd "$top/root"
            mount -t proc proc proc
            # As another boot has: the kernel is the same.
            cp proc/sys/kernel/random/uuid "$top/boot_id"
            mount --bind "$top/boot_id" proc/sys/kernel/random/boot_id
            # The kernel is the one of whoever runs the tests: its settings are not ours.
            mount --bind proc/sys proc/sys
            mount -o remount,bind,ro proc/sys
            mount -t sysfs -o ro sysfs sys
            mount -t cgroup2 cgroup2 sys/fs/cgroup
            mount -t tmpfs -o mode=755,nosuid tmpfs run
            mount -t tmpfs -o mode=1777 tmpfs tmp
            mount --bind -o ro "$clone" opt/localpuppet
            mount -t tmpfs -o mode=755,nosuid tmpfs dev
            for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
                # shellcheck disable=SC2086 # three words
                set -- $node
                mknod -m 666 "dev/$1" c "$2" "$3"
            done
            mkdir dev/pts dev/shm .old
            mount -t devpts -o newinstance,mode=620,ptmxmode=666 devpts dev/pts
            mount -t tmpfs -o mode=1777 tmpfs dev/shm
            ln -s pts/ptmx dev/ptmx
            ln -s /proc/self/fd dev/fd
            ln -s fd/0 dev/stdin
            ln -s fd/1 dev/stdout
            ln -s fd/2 dev/stderr
            : >dev/console
            ip link set lo up
            hostname web01.example.com
            pivot_root . .old
            umount -l /.old
            rmdir /.old
            # systemd leaves that to whoever boots it in a namespace; credentials need it.
            mount --make-rshared /
            echo "$pid"
            exec env -i container=unshare PATH=/usr/sbin:/usr/bin:/sbin:/bin \
                /usr/lib/systemd/systemd --unit=multi-user.target >/dev/console 2>&1
        ' </dev/null
    ) || true
    # Ends with the pid namespace: nothing of it is left.
    find "$own" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null || true
    echo over
done
rmdir "$own"
umount -l "$top"
rmdir "$top"
