# Run by the shell that is the container's first process. Everything that may hold odd bytes is printed as base64.
echo "environ $(base64 -w0 /proc/$$/environ)"
echo "cmdline $(base64 -w0 /proc/$$/cmdline)"
as_base64() { printf %s "$1" | base64 -w0; }
look() {
  cd "$2" || return
  find -L . -type f | while IFS= read -r path; do
    path=${path#./}
    case $path in ..*) continue ;; esac
    contents=-
    [ -r "$path" ] && contents="$(base64 -w0 "$path")"
    echo "file $1 $(as_base64 "$path") $(stat -L -c '%a %u:%g' "$path") $contents"
  done
  find . -mindepth 1 -maxdepth 1 -type l | while IFS= read -r path; do
    echo "link $1 $(as_base64 "${path#./}") $(as_base64 "$(readlink "$path")")"
  done
}
for volume in /v/*; do
  [ -d "$volume" ] && look "${volume##*/}" "$volume"
done
account=/var/run/secrets/kubernetes.io/serviceaccount
[ -d "$account" ] && look kube-api-access "$account"
echo end
