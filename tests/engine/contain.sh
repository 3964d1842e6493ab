#!/bin/sh
# As docker would for docs/deploy.md's confined line: an overlay as a read-only root, volumes, a
# network of its own, user 2000:0 without capabilities. Run by `unshare`, it becomes process 1.
# contain.sh ROOT VIRTUALENV PYTHON REPOSITORY VOLUMES COMMAND...
set -eu
root=$1 virtualenv=$2 python=$3 repository=$4 volumes=$5
shift 5

mount -t tmpfs tmpfs "$root"
mkdir "$root/upper" "$root/work" "$root/merged"
mount -t overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" overlay "$root/merged"
cd "$root/merged"

attach() { # WHAT WHERE OPTIONS
    mkdir -p ".$2"
    mount --bind -o "$3" "$1" ".$2"
}
touch .dockerenv
mkdir -p opt/slipstream
ln -s "$virtualenv/bin" opt/slipstream/bin
install --mode 444 "$repository/deploy/container/healthcheck.py" opt/slipstream/
# What the user must read may lie in somebody's home.
mount -t tmpfs -o mode=755 tmpfs root
mount -t tmpfs -o mode=755 tmpfs home
mount -t tmpfs -o mode=1777,size=2g tmpfs tmp
for folder in "$python" "$repository" "$virtualenv"; do attach "$folder" "$folder" ro; done
attach "$volumes/models/target" /models/target ro
attach "$volumes/models/drafter" /models/drafter ro
attach "$volumes/lib" /var/lib/slipstream rw
attach "$volumes/cache" /var/cache/slipstream rw
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount --rbind /dev dev
mount -o remount,ro "$root/merged"
"$virtualenv/bin/python" - <<'UP'
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh22x", b"lo", 1))
UP
exec chroot . setpriv --reuid 2000 --regid 0 --clear-groups --inh-caps=-all --bounding-set=-all \
    --no-new-privs env --chdir /var/lib/slipstream "$@"
