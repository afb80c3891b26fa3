#!/usr/bin/env bash
# Makes the tools of the tests available, on PATH or in .tools/bin of the checkout.
#
#   tools.sh TOOL...        redis-server, redis-cli, luacheck, gcc
#
# What is missing comes from Debian: installed by root or by sudo that asks no
# password, and otherwise, or where that fails, unpacked into .tools/,
# which needs no rights at all. Exits with 1 when a tool cannot be had.
set -euo pipefail

tools=$(cd "$(dirname "$0")/.." && pwd)/.tools
unpacked=$tools/debian

say() { printf 'tools: %s\n' "$*" >&2; }

# A compiler without the headers of libc is none.
has() {
  case $1 in
    gcc) gcc -x c -o /dev/null - <<<$'#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }' ;;
    *) "$1" --version ;;
  esac >/dev/null 2>&1
}

packages_of() {
  case $1 in
    redis-server) echo redis-server ;;
    redis-cli) echo redis-tools ;;
    luacheck) echo lua-check ;;
    gcc) printf '%s\n' gcc libc6-dev ;; # go test -race is built with cgo
    *) say "$1 is not known here" && return 1 ;;
  esac
}

# install runs apt-get as root, which "$1" (env or sudo) makes it. The packages'
# services must not stay: tests bring up their own servers, and port 6379 may be
# somebody's. SYSTEMD_OFFLINE keeps systemctl from starting one; other inits
# start it, and it is stopped.
install() {
  local as_root=$1 && shift
  local apt=("$as_root" env DEBIAN_FRONTEND=noninteractive SYSTEMD_OFFLINE=1
    apt-get -q -o DPkg::Lock::Timeout=120)
  say "installing $*"
  if ! "${apt[@]}" install -y --no-install-recommends "$@" >&2; then
    say "once more, with new package lists"
    "${apt[@]}" update >&2 || true # one source that is away need not matter
    "${apt[@]}" install -y --no-install-recommends "$@" >&2 || return 1
  fi
  case " $* " in
    *" redis-server "*) "$as_root" service redis-server stop >/dev/null 2>&1 || true ;;
  esac
}

# unpack gets the packages, and what they depend on that the machine does not
# have, with lists and caches of our own.
unpack() {
  local own=$tools/apt
  say "unpacking $* into .tools"
  mkdir -p "$own/lists/partial" "$own/cache/archives/partial" "$unpacked" "$tools/bin"
  local apt=(apt-get -q -o "Dir::State::lists=$own/lists" -o "Dir::Cache=$own/cache" -o Debug::NoLocking=true)
  "${apt[@]}" update >&2 || true
  # APT plans the install without doing it; its lines are 'address' file size hash.
  local planned wanted
  planned=$("${apt[@]}" install --print-uris -y --no-install-recommends "$@" | sed -n "s/^'[^']*' \([^_ ]*\)_.*/\1/p") || return 1
  mapfile -t wanted < <(printf '%s\n' "$@" "$planned" | sed '/^$/d' | sort -u)
  (cd "$own/cache/archives" && "${apt[@]}" download "${wanted[@]}" >&2) || return 1
  local deb
  for deb in "$own"/cache/archives/*.deb; do
    dpkg-deb -x "$deb" "$unpacked" || return 1
  done
  rm -rf "$own" # the lists alone are over 100 MB
  # The compiler looks for the C library in the unpacked tree, which has its
  # headers but not the library that the machine runs on.
  local library
  for library in /lib/*-linux-gnu/{libc,libm,libmvec,libgcc_s}.so.* /lib*/{,*-linux-gnu/}ld-linux*.so.*; do
    [ ! -e "$library" ] || [ -e "$unpacked$library" ] || { mkdir -p "$unpacked${library%/*}" && ln -s "$library" "$unpacked$library"; }
  done
  local tool
  for tool in redis-server redis-cli luacheck gcc; do
    [ ! -e "$unpacked/usr/bin/$tool" ] || wrap "$tool"
  done
}

# wrap writes bin/TOOL. It finds the tree from where it stands itself, so that a
# checkout can be moved and be called anything.
wrap() {
  local start
  case $1 in
    luacheck) start="lua5.1 \"\$d/usr/bin/luacheck\"" ;; # a script of Lua's
    gcc) start="\"\$d/usr/bin/gcc\" --sysroot=\"\$d\"" ;;
    *) start="\"\$d/usr/bin/$1\"" ;;
  esac
  cat >"$tools/bin/$1" <<END
#!/bin/sh
d=\$(cd "\$(dirname "\$0")/../debian" && pwd)
for l in "\$d"/lib/*-linux-gnu "\$d"/usr/lib/*-linux-gnu; do LD_LIBRARY_PATH="\$l\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"; done
for l in "\$d"/usr/lib/*-linux-gnu/lua/5.1; do LUA_CPATH="\$l/?.so;;"; done
LUA_PATH="\$d/usr/share/lua/5.1/?.lua;\$d/usr/share/lua/5.1/?/init.lua;;"
PATH="\$PATH:\$d/usr/bin" # lua5.1, and gcc's as and ld
export LD_LIBRARY_PATH LUA_PATH LUA_CPATH PATH
exec $start "\$@"
END
  chmod +x "$tools/bin/$1"
}

# missing sets packages to those of the tools that are not here.
missing() {
  packages=()
  local tool
  for tool in "$@"; do
    has "$tool" || mapfile -t -O "${#packages[@]}" packages < <(packages_of "$tool")
  done
  [ ${#packages[@]} -gt 0 ]
}

PATH=$PATH:$tools/bin
if missing "$@"; then
  if ! command -v apt-get >/dev/null; then
    say "please install $*: this machine has no apt-get to do it"
    exit 1
  elif [ "$(id -u)" = 0 ]; then
    install env "${packages[@]}" || say "apt-get failed"
  elif sudo -n true 2>/dev/null; then
    install sudo "${packages[@]}" || say "apt-get failed"
  fi
fi
if missing "$@"; then
  unpack "${packages[@]}" || say "could not get ${packages[*]}"
fi
for tool in "$@"; do
  has "$tool" || { say "$tool is not available"; exit 1; }
done
