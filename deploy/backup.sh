#!/bin/sh
# Take a backup of the control plane's database while everything runs:  deploy/backup.sh FOLDER
# Writes FOLDER/gpuyard-TIME.dump with its checksum; prints the path of the dump. Needs DATABASE_URL, pg_dump of the
# server's version (PG_BIN names its folder), sha256sum. For restores to any second, see README.md: base backup and WAL.
set -eu

folder=${1:?usage: backup.sh FOLDER}
url=${GPUYARD_DATABASE_URL:-${DATABASE_URL:?Set DATABASE_URL}}
bin=${PG_BIN:+$PG_BIN/}

umask 077 # it holds everybody's books
mkdir -p "$folder"
name="gpuyard-$(date -u +%Y%m%dT%H%M%SZ)-$$.dump"
partial="$folder/.$name.partial"
trap 'rm -f "$partial"' EXIT

# One snapshot, whatever is written meanwhile. Custom format: restored in one transaction, or in part by hand.
"${bin}pg_dump" --dbname="$url" --format=custom --no-owner --no-privileges --file="$partial"
"${bin}pg_restore" --list "$partial" >/dev/null # it can be read, to its end
mv "$partial" "$folder/$name"
(cd "$folder" && sha256sum "$name" >"$name.sha256")
echo "$folder/$name"
