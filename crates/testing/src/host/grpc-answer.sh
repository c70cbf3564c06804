#!/bin/sh
# One HTTP/2 connection of a gRPC client that asks for health: every request is answered with $ANSWER.
dd bs=1 count=24 of=/dev/null 2>/dev/null
printf '\000\000\000\004\000\000\000\000\000'
while :; do
  set -- $(dd bs=1 count=9 2>/dev/null | od -An -v -tu1)
  [ $# = 9 ] || exit 0
  length=$((($1 * 256 + $2) * 256 + $3)) kind=$4 flags=$5
  stream=$(printf '\\%03o\\%03o\\%03o\\%03o' "$6" "$7" "$8" "$9")
  [ "$length" = 0 ] || dd bs=1 count="$length" of=/dev/null 2>/dev/null
  case $kind in
    0)
      # The request is whole: a response of status 200, the message with its one field, and the trailers.
      printf "\\000\\000\\023\\001\\004$stream\\210\\137\\020application/grpc"
      printf "\\000\\000\\007\\000\\000$stream\\000\\000\\000\\000\\002\\010\\00$ANSWER"
      printf "\\000\\000\\017\\001\\005$stream\\100\\013grpc-status\\0010"
      ;;
    4) [ "$flags" = 1 ] || printf '\000\000\000\004\001\000\000\000\000' ;;
  esac
done
