#!/usr/bin/env bash
# Installs Godot 4 from Debian's package archive into a folder, and nothing outside of it.
#
#   tests/engines/install_godot.sh .godot-engine
#
# The packages of Debian forky are fetched with a private configuration of apt (signatures are checked) and unpacked with
# `dpkg-deb -x`. They need a newer C library than most systems have: `bin/godot` runs with the folder's own.
# Needs apt, dpkg-deb and about 800 MB; downloads about 180 MB.
set -euo pipefail
target=$(mkdir -p "${1:?the folder to install into}" && cd "$1" && pwd)
suite=${GODOT_SUITE:-forky}
packages="godot godot-template-release xvfb xauth libgl1-mesa-dri libc6 libc-bin"
if [ -x "$target/bin/godot" ]; then echo "$target/bin/godot is there"; exit 0; fi
mirror=$(apt-get indextargets --format '$(SITE)' | grep '/debian/*$' | head -n 1)
if [ -z "$mirror" ]; then echo "apt-get knows no archive of Debian" >&2; exit 1; fi

apt=$target/apt
mkdir -p "$apt"/{etc/apt.conf.d,etc/preferences.d,etc/sources.list.d,etc/trusted.gpg.d,state/lists/partial,cache/archives/partial,dpkg}
: > "$apt/dpkg/status"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $mirror $suite main" > "$apt/etc/sources.list"
cat > "$apt/apt.conf" <<CONF
Dir::Etc "$apt/etc";
Dir::Etc::sourcelist "$apt/etc/sources.list";
Dir::State "$apt/state";
Dir::State::status "$apt/dpkg/status";
Dir::Cache "$apt/cache";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
Debug::NoLocking "true";
CONF
export APT_CONFIG=$apt/apt.conf
apt-get -qq update
apt-get -qq --yes --download-only install $packages
mkdir -p "$target/root"
# Since bookworm /bin, /lib and /sbin are links into /usr; packages rely on it.
for name in bin lib lib64 sbin; do mkdir -p "$target/root/usr/$name"; ln -sfn "usr/$name" "$target/root/$name"; done
for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$target/root"; done
rm -rf "$apt"
mkdir -p "$target/bin"
cat > "$target/bin/godot" <<RUN
#!/bin/sh
root=$target/root
libraries=\$root/usr/lib/x86_64-linux-gnu
export LIBGL_DRIVERS_PATH=\$libraries/dri
exec "\$libraries/ld-linux-x86-64.so.2" --library-path "\$libraries:\$libraries/pulseaudio" "\$root/usr/bin/godot" "\$@"
RUN
chmod +x "$target/bin/godot"
"$target/bin/godot" --headless --version
