#!/usr/bin/env bash
# Installs what bin/ has, with everything that belongs to it, below $DESTDIR$PREFIX. 'make install' calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local} to=${DESTDIR:-}${PREFIX:-/usr/local}
lib=$to/lib share=$to/share doc=$to/share/doc/guestprobe
install -D -m 755 -t "$to/bin" bin/guestprobe bin/guestprobed bin/guestprobe-fleetd
for unit in guestprobed@.service guestprobed@.socket; do
	install -d "$lib/systemd/system"
	sed -e "s|/usr/bin/|$prefix/bin/|; s|/usr/share/|$prefix/share/|" "packaging/$unit" >"$lib/systemd/system/$unit"
	chmod 644 "$lib/systemd/system/$unit"
done
install -D -m 644 packaging/guestprobe.sysusers "$lib/sysusers.d/guestprobe.conf"
install -D -m 644 packaging/guestprobe.tmpfiles "$lib/tmpfiles.d/guestprobe.conf"
install -D -m 644 -t "$doc" LICENSE NOTICE README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md
install -D -m 644 -t "$doc/docs/start" docs/start/*.md
install -D -m 644 -t "$doc/docs" docs/*.md docs/openapi.yaml docs/grafana.json docs/*.png
# An example, because not every host wants it.
install -D -m 644 packaging/guestprobe.udev "$doc/examples/70-guestprobe.rules"
install -D -m 644 packaging/example.toml "$doc/examples/example.toml"
install -D -m 644 -t "$doc/examples/guest" docs/examples/guest/*
install -D -m 644 -t "$doc/examples" docs/examples/*.c docs/examples/*.h docs/examples/*.bt
install -d "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
bin/gpdev man "$share/man/man1"
gzip -9nf "$share"/man/man1/guestprobe*.1
bin/guestprobe completion bash >"$share/bash-completion/completions/guestprobe"
bin/guestprobe completion zsh >"$share/zsh/site-functions/_guestprobe"
bin/guestprobe completion fish >"$share/fish/vendor_completions.d/guestprobe.fish"
find "$share/bash-completion" "$share/zsh" "$share/fish" -type f -exec chmod 644 {} +
