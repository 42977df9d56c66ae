#!/bin/sh
# Runs a command in a private root directory that has only the named paths, read-only.
#
#   isolate.sh ROOT PATH… -- COMMAND…
#
# The caller has put this process in new namespaces (mounts, processes, network). ROOT is an empty
# directory. A path may be a directory, a file or a link; a missing one is left out. Of a path that
# starts with `+`, everything is readable: it is copied if another user could not read it. A
# directory that starts with `-` is empty, except for paths that come after it.
set -eu
root=$1
shift
mount -t tmpfs -o mode=755,size=1g,nosuid,nodev tmpfs "$root"
mkdir "$root/tmp" "$root/proc" "$root/old"
mount -t tmpfs -o mode=1777,size=64m,nr_inodes=16k,nosuid,nodev tmpfs "$root/tmp"
own=0
while [ "$1" != -- ]; do
    path=${1#-}
    if [ "$path" != "$1" ]; then
        shift
        [ -d "$root$path" ] || continue
        own=$((own + 1))
        mkdir "$root/.$own"
        mount --bind "$root/.$own" "$root$path"
        continue
    fi
    path=${1#+}
    if [ "$path" != "$1" ] && [ -n "$(find -P "$path" ! -type l ! -perm -a+r -print -quit 2>&1)" ]; then
        shift
        { [ -e "$path" ] && [ ! -e "$root$path" ]; } || continue
        own=$((own + 1))
        cp -a "$path" "$root/.$own"
        chmod -R a+rX "$root/.$own"
        mkdir -p "$root$(dirname "$path")"
        if [ -d "$path" ]; then mkdir "$root$path"; else : > "$root$path"; fi
        mount --bind "$root/.$own" "$root$path"
        continue
    fi
    shift
    if [ -e "$root$path" ] || [ -L "$root$path" ]; then
        continue
    elif [ -L "$path" ]; then
        mkdir -p "$root$(dirname "$path")"
        cp -P "$path" "$root$path"
        continue
    elif [ -d "$path" ]; then
        mkdir -p "$root$path"
    elif [ -e "$path" ]; then
        mkdir -p "$root$(dirname "$path")"
        : > "$root$path"
    else
        continue
    fi
    mount --bind "$path" "$root$path"
    case $path in
    /dev/*) continue ;;
    esac
    # A mount of another user namespace keeps its flags.
    flags=$(findmnt -fnro VFS-OPTIONS -T "$path" | sed 's/\brw\b/ro/; s/,\?\(no\|rel\|strict\)atime//g')
    mount -o "remount,bind,nosuid,nodev,$flags" "$root$path"
done
shift
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
cd "$root"
# It is in /usr/sbin, which the PATH of users often lacks.
PATH=$PATH:/usr/sbin:/sbin pivot_root . old
umount -l old
rmdir old
# With source and type: otherwise the old options are given again, with users of another namespace.
mount -t tmpfs -o remount,ro,nosuid,nodev tmpfs /
exec "$@"
