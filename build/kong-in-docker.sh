#!/bin/sh
# Is the command `kong` of the image $KONG_IMAGE (kong:3.9), for `make e2e-kong` where
# Docker is and no Kong: the same arguments, the same KONG_ variables, the host's
# network, and the folder of temporary files, where the tests put all that Kong needs.
set -eu
temporary=${TMPDIR:-/tmp}
variables=
for name in $(env | sed -n 's/^\(KONG_[A-Z_]*\)=.*/\1/p'); do
  case $name in KONG_BIN | KONG_IMAGE) ;; *) variables="$variables --env $name" ;; esac
done
# shellcheck disable=SC2086 # names without spaces
exec docker run --rm --network host --user "$(id -u):$(id -g)" --volume "$temporary:$temporary" $variables \
  --entrypoint kong "${KONG_IMAGE:-kong:3.9}" "$@"
