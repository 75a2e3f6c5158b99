#!/bin/sh
# Restore the control plane's database from a backup:  deploy/restore.sh DUMP
# Every process of the control plane is stopped before; the database of DATABASE_URL is replaced. Needs pg_restore and
# psql of the server's version (PG_BIN names their folder) and this release's manage.py (PYTHON runs it).
set -eu

dump=${1:?usage: restore.sh DUMP}
url=${GPUYARD_DATABASE_URL:-${DATABASE_URL:?Set DATABASE_URL}}
bin=${PG_BIN:+$PG_BIN/}
home=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$home/.venv/bin/python}
say() { echo "restore: $*" >&2; }

folder=$(cd "$(dirname "$dump")" && pwd)
file=$(basename "$dump")
if [ -e "$folder/$file.sha256" ]; then
    (cd "$folder" && sha256sum --check --quiet "$file.sha256") || { say "$file is damaged"; exit 1; }
fi

ask() { "${bin}psql" --dbname="$url" --no-psqlrc --tuples-only --no-align --set=ON_ERROR_STOP=1 --command="$1"; }
others=$(ask "SELECT count(*) FROM pg_stat_activity
              WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'")
if [ "$others" -ne 0 ]; then
    say "$others connections use this database: stop every process of the control plane first"
    exit 1
fi

# All or nothing: a restore that fails leaves the database as it was.
say "restoring $file"
{
    echo "BEGIN;"
    echo "SET LOCAL client_min_messages = warning;"
    echo "DROP SCHEMA public CASCADE; CREATE SCHEMA public;"
    # A dump that breaks off must not be committed: what follows then is an error.
    "${bin}pg_restore" --no-owner --no-privileges --file=- "$folder/$file" || echo "SELECT 1/0;"
    echo "COMMIT;"
} | "${bin}psql" --dbname="$url" --no-psqlrc --quiet --set=ON_ERROR_STOP=1 >/dev/null

say "migrating to this release"
"$python" "$home/manage.py" migrate --no-input >&2
# Before anything of ours runs: what hosts were told since the backup is not known any more.
say "making it safe to go on"
"$python" "$home/manage.py" after_restore --yes
say "proving the books"
"$python" "$home/manage.py" reconcile >&2
say "done: start api and loops, then streams; then watch the hosts come back in the admin"
