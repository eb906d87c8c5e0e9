#!/bin/sh
# The first process of a server, in its own namespaces. It reports its pid to their creator and waits for its network.
# Then it covers what it must not share with the machine, starts sshd, and acts as init from then on.
set -eu
folder=$1
read -r pid _ </proc/self/stat # /proc is still the machine's: this is the pid as seen from there
echo "$pid"
read -r _
cd /

while read -r name address; do
  ip addr add "$address" dev "$name"
  ip link set "$name" up
done <"$folder/interfaces"
ip link set lo up

hostname "$(cat "$folder/etc/hostname")"
mount -t proc proc /proc
mount --bind "$folder/boot_id" /proc/sys/kernel/random/boot_id
mount --rbind /sys/fs/cgroup /mnt
mount -t sysfs sysfs /sys # /sys/class/net is of the network that it was mounted in
mount --rbind /mnt /sys/fs/cgroup
umount -l /mnt

# Kept at /srv, before the folders that may contain them are covered.
mount -t tmpfs -o mode=755 tmpfs /srv
mkdir -m 700 /srv/lab
mkdir /srv/shown
mount --bind "$folder" /srv/lab
shown=0
while read -r path; do
  shown=$((shown + 1))
  mkdir "/srv/shown/$shown"
  mount --rbind "$path" "/srv/shown/$shown"
done </srv/lab/shown

for name in /srv/lab/etc/*; do
  mount --bind "$name" "/etc/${name##*/}"
done
for name in home root; do
  mount --bind "/srv/lab/$name" "/$name"
done
mount --bind /srv/lab/vartmp /var/tmp
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
while read -r path; do
  ! test -d "$path" || mount -t tmpfs -o mode=755 tmpfs "$path"
done </srv/lab/hidden
shown=0
while read -r path; do
  shown=$((shown + 1))
  mkdir -p "$path"
  mount --rbind "/srv/shown/$shown" "$path"
  mount -o remount,bind,ro "$path"
done </srv/lab/shown
if test -e /srv/lab/no-python; then
  mkdir /srv/changes /srv/changes.work
  mount -t overlay -o lowerdir=/usr/bin,upperdir=/srv/changes,workdir=/srv/changes.work overlay /usr/bin
  rm -f /usr/bin/python* /usr/bin/pypy*
  mount -t tmpfs tmpfs /usr/local
fi

/usr/sbin/sshd -f /etc/ssh/sshd_config -E /srv/lab/sshd.log
echo up
exec </dev/null >/dev/null 2>&1
# init: collects orphaned processes.
while :; do
  sleep 1000000 &
  wait $! || :
done
