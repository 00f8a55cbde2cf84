# Sourced by `tests/run`: the Python that has PyTorch, and the frameworks on top of it.

readonly newest_torch=2.15.0
readonly torch_version=${RANKRUN_TEST_TORCH:-$newest_torch}
readonly pins=tests/pytorch/frameworks.txt

# A virtual environment cannot be moved, so it is built in place under a lock, and a stamp says that it is complete.
install_torch() {
    local venv="$cache/venv-torch-$torch_version"
    lock "$venv" PyTorch
    if [[ ! -e $venv/.complete ]]; then
        if ! has_torch "$venv/bin/python"; then
            rm -rf "$venv"
            python3 -m venv "$venv"
            say "installing PyTorch $torch_version into $venv (3 GB to download on x86-64, some minutes)"
            "$venv/bin/pip" install --no-cache-dir "torch==$torch_version" numpy >&2 ||
                die "PyTorch $torch_version cannot be installed" "pip's lines above say why; or name a Python that has it in RANKRUN_TEST_PYTHON"
        fi
        touch "$venv/.complete"
    fi
    unlock
    RANKRUN_TEST_PYTHON="$venv/bin/python"
}

has_torch() {
    [[ -x $1 ]] && "$1" -c "
import sys, torch, numpy
sys.exit(not torch.__version__.startswith('$torch_version'))" 2>/dev/null
}

# A folder for PYTHONPATH beside PyTorch's environment, which stays as it is: nothing but what is pinned gets in.
install_frameworks() {
    local folder tag
    tag=$("$RANKRUN_TEST_PYTHON" -c 'import sys; print(sys.implementation.cache_tag)')
    folder="$cache/frameworks-$(pinned transformers)-$(pinned pytorch-lightning)-$tag"
    lock "$folder" "the frameworks"
    if ! cmp -s "$pins" "$folder/pins.txt"; then
        "$RANKRUN_TEST_PYTHON" -m pip --version >/dev/null 2>&1 ||
            die "\`$RANKRUN_TEST_PYTHON\` has no pip to install the frameworks of $pins" \
                "install pip there, or name a folder that has them in RANKRUN_TEST_FRAMEWORKS"
        say "installing the frameworks into $folder (40 MB to download)"
        rm -rf "$folder" "$folder.new"
        "$RANKRUN_TEST_PYTHON" -m pip install --no-cache-dir --no-deps --target "$folder.new" --requirement "$pins" >&2 ||
            die "the frameworks of $pins cannot be installed" "pip's lines above say why"
        cp "$pins" "$folder.new/pins.txt"
        mv "$folder.new" "$folder"
    fi
    unlock
    RANKRUN_TEST_FRAMEWORKS="$folder"
}

# PACKAGE: its version.
pinned() { sed -n "s/^$1==//p" "$pins"; }

# Installs all that tests of PyTorch need, and exports where it is.
install_pythons() {
    if [[ -z ${RANKRUN_TEST_PYTHON:-} ]]; then
        install_python
        install_torch
    elif ! has_torch "$RANKRUN_TEST_PYTHON"; then
        die "\`$RANKRUN_TEST_PYTHON\` has no PyTorch $torch_version with numpy" \
            "unset RANKRUN_TEST_PYTHON to have one installed"
    fi
    export RANKRUN_TEST_PYTHON
    # The frameworks are pinned for the newest.
    [[ $torch_version == "$newest_torch" ]] || return 0
    [[ -n ${RANKRUN_TEST_FRAMEWORKS:-} ]] || install_frameworks
    export RANKRUN_TEST_FRAMEWORKS
}
