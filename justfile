# The usual commands. Without `just` each recipe's lines can be typed as they are.

_default:
    @just --list --unsorted

# Unit tests of launcher, contract and runtime: less than a minute after a build on two cores, without PyTorch.
test *FILTER:
    tests/run unit {{FILTER}}

# The real launcher with real workers, the examples, the rules for words; without PyTorch.
e2e *FILTER:
    tests/run e2e {{FILTER}}

# Everything that needs PyTorch: beside its torchrun, and training under the launcher.
torch *FILTER:
    tests/run contract {{FILTER}}
    tests/run torch {{FILTER}}

# The adapter for candle, linted and tested.
candle *FILTER:
    tests/run candle {{FILTER}}

# `pip install` of the wheel.
wheel:
    tests/run wheel

# What CI runs on every commit.
ci:
    .ci/run

# The big counts with random cases, Miri, an emulated machine, the licences and advisories of dependencies, an old PyTorch,
# the oldest and the newest Python, the manifests against the schemas of Kubernetes, and real MPI launchers.
nightly:
    @command -v cargo-deny >/dev/null || { echo 'error: cargo-deny is not installed' >&2; echo 'hint: cargo install --locked cargo-deny' >&2; exit 1; }
    RANKRUN_SOAK=1 tests/run
    tests/miri
    tests/aarch64
    cargo deny check
    RANKRUN_TEST_TORCH=2.4.1 tests/run torch
    tests/pythons
    tests/kubernetes
    tests/mpi

# Launch, restart and output beside torchrun's. docs/performance.md has the command of each figure.
bench:
    cargo bench -p rankrun --bench launch
    cargo bench -p rankrun --bench restart
    cargo bench -p rankrun --bench tee

# README and guides: links, commands, options. The book is then target/book/index.html.
book:
    tests/run book

# The documentation of all packages, with no warning.
docs:
    RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps

# What the rules for words find; the limits are rewritten.
words:
    RANKRUN_UPDATE=1 cargo run -p text-rules
