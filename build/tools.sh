#!/usr/bin/env bash
# Makes tools available: redis-server, redis-cli, luacheck, gcc.
#
#   tools.sh TOOL...
#
# What is missing comes from Debian: installed by root or sudo, and otherwise
# unpacked into .tools/ of the checkout, which needs no rights at all (not gcc: a
# compiler does not run from anywhere). Exits with 1 when a tool cannot be had.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
unpacked=$root/.tools/debian
wrappers=$root/.tools/bin

say() { printf 'tools: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1 && "$1" --version >/dev/null 2>&1; }

package_of() {
  case $1 in
    redis-server) echo redis-server ;;
    redis-cli) echo redis-tools ;;
    luacheck) echo lua-check ;;
    gcc) echo gcc libc6-dev ;;
    *) say "$1 is not known here" && return 1 ;;
  esac
}

# A package's own service must not start: tests bring their servers up
# themselves, and port 6379 may be somebody's.
install_as_root() {
  local run=$1 && shift
  local policy=/usr/sbin/policy-rc.d made=
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $run tee "$policy" >/dev/null
    $run chmod +x "$policy"
    made=yes
  fi
  # Package lists may be missing or old; most machines have good ones.
  local failed=0
  $run env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >&2 ||
    { $run apt-get update -q >&2 &&
      $run env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >&2; } || failed=1
  [ -z "$made" ] || $run rm -f "$policy"
  return "$failed"
}

# unpack gets the packages and what they depend on that the machine does not
# have, with lists and caches of our own.
unpack() {
  local state=$root/.tools/apt
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$unpacked" "$wrappers"
  local options=(-o "Dir::State::lists=$state/lists" -o "Dir::Cache=$state/cache" -o Debug::NoLocking=true -q)
  [ -e "$state/updated" ] || { apt-get "${options[@]}" update >&2 && touch "$state/updated"; } || return 1
  local uris
  # APT plans the install without doing it: this lists what is not there yet.
  uris=$(apt-get "${options[@]}" install --print-uris -y --no-install-recommends "$@" | sed -n "s/^'[^']*' \([^_ ]*\)_.*/\1/p") || return 1
  local package
  for package in "$@" $uris; do
    (cd "$state/cache/archives" && apt-get "${options[@]}" download "$package" >&2) || return 1
  done
  local deb
  for deb in "$state"/cache/archives/*.deb; do
    dpkg-deb -x "$deb" "$unpacked"
  done
  local libraries lua=$unpacked/usr/share/lua/5.1
  libraries=$(find "$unpacked" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
  local tool program
  for tool in redis-server redis-cli luacheck; do
    program=$unpacked/usr/bin/$tool
    # redis-server is a link to redis-check-rdb's binary in some releases, and
    # luacheck a Lua script: both run from where they are.
    [ -e "$program" ] || continue
    {
      echo '#!/bin/sh'
      printf 'export LD_LIBRARY_PATH="%s${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n' "$libraries"
      printf 'export LUA_PATH="%s/?.lua;%s/?/init.lua;;"\n' "$lua" "$lua"
      printf 'export LUA_CPATH="%s;;"\n' "$(find "$unpacked" -type d -path '*/lua/5.1' -printf '%p/?.so;' | sed 's/;$//')"
      if head -c 2 "$program" | grep -q '#!'; then
        interpreter=$(command -v lua5.1 || command -v lua || find "$unpacked/usr/bin" -name 'lua5.1' | head -n 1)
        printf 'exec "%s" "%s" "$@"\n' "$interpreter" "$program"
      else
        printf 'exec "%s" "$@"\n' "$program"
      fi
    } >"$wrappers/$tool"
    chmod +x "$wrappers/$tool"
  done
}

PATH=$wrappers:$PATH
missing=()
for tool in "$@"; do
  # shellcheck disable=SC2207 # package names have no spaces
  has "$tool" || missing+=($(package_of "$tool"))
done
if [ ${#missing[@]} -gt 0 ]; then
  if ! command -v apt-get >/dev/null 2>&1; then
    say "please install $* (this machine has no apt-get)"
    exit 1
  elif [ "$(id -u)" = 0 ]; then
    say "installing ${missing[*]}"
    install_as_root env "${missing[@]}" || say "could not install ${missing[*]}"
  elif sudo -n true 2>/dev/null; then
    say "installing ${missing[*]} with sudo"
    install_as_root sudo "${missing[@]}" || say "could not install ${missing[*]}"
  elif [ "$*" = gcc ]; then
    say "gcc is missing, and needs root to install"
  else
    say "unpacking ${missing[*]} into .tools (no root, no sudo)"
    unpack "${missing[@]}" || say "could not get ${missing[*]}"
  fi
fi
for tool in "$@"; do
  has "$tool" || { say "$tool is not available"; exit 1; }
done
