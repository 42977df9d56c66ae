#!/bin/sh
# Builds our own Debian package in a Debian, without a trace there: build.sh BASE CLONE DIRECTORY
set -eu
base=$1 clone=$2 directory=$3
top=$(mktemp -d /tmp/lp-build.XXXXXX)
trap 'umount -l "$top"; rmdir "$top"' EXIT
mount -t tmpfs -o mode=755 build "$top"
mkdir "$top/upper" "$top/work" "$top/root"
mount -t overlay build -o "lowerdir=$base,upperdir=$top/upper,workdir=$top/work" "$top/root"
root=$top/root
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$directory" "$root/mnt"
mkdir -p "$root/srv/source"
cd "$clone"
git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$root/srv/source"
# A package that costs little to build, and to install; what is in it is the same.
chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DPKG_DEB_COMPRESSOR_TYPE=none sh -euc '
    cd /srv/source
    git init -q -b main
    git add -A
    git -c user.name=tests -c user.email=tests@localhost commit -qm "as it stands"
    scripts/build deb /mnt
    # And the one that comes after it.
    dpkg-deb -R /mnt/localpuppet_*.deb /srv/newer
    sed -i "s/^Version: .*/&.1/" /srv/newer/DEBIAN/control
    dpkg-deb --root-owner-group --build /srv/newer /mnt/newer.deb
' >"$directory/log" 2>&1 || {
    tail -n 20 "$directory/log" >&2
    exit 1
}
