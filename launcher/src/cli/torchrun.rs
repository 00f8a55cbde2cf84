//! torchrun 2.15's options, in the order of its help: names, types and defaults. The sentences are ours.

use super::completion::SHELLS;
use super::option::{Family, OptionRow};

/// The usage that torchrun prints before an error.
pub(super) const USAGE: &str = include_str!("torchrun_usage.txt");

pub(super) static HELP: OptionRow =
    OptionRow::flag("help", "Print this help and exit").short(b'h').family(Family::None);

pub(super) static NNODES: OptionRow = OptionRow::text(
    "nnodes",
    "N|MIN:MAX",
    "Nodes in the job, with one launcher on each; with MIN:MAX and c10d it runs with any number between \
     [default: 1]",
);
pub(super) static NPROC_PER_NODE: OptionRow = OptionRow::text(
    "nproc-per-node",
    "N|auto|gpu|xpu|cpu|TYPE",
    "Workers on this node: a number, `cpu` for one per CPU that the launcher may use, `gpu` for one per visible CUDA or \
     ROCm device, `xpu` or another type for one per device of it, or `auto`: the accelerators, else as `cpu` \
     [default: 1; under the name rankrun one per visible accelerator, 1 without any]",
);
pub(super) static RDZV_BACKEND: OptionRow = OptionRow::text(
    "rdzv-backend",
    "static|c10d",
    "How nodes find each other: `static`, a store on the given port of the node with rank 0, or `c10d`, a store of \
     their own on the endpoint and the workers' on a free port of some node; etcd is not supported yet \
     [default: static]",
);
pub(super) static RDZV_ENDPOINT: OptionRow = OptionRow::text(
    "rdzv-endpoint",
    "HOST[:PORT]",
    "Where nodes find each other: an address of one of them, the same for all, an IPv6 one in brackets \
     [default: --master-addr and --master-port; for c10d localhost:29400]",
);
pub(super) static RDZV_ID: OptionRow = OptionRow::text(
    "rdzv-id",
    "ID",
    "The run id, the same on all nodes [default: a fresh UUID; `none` with c10d, an endpoint, --master-port or several \
     nodes]",
);
pub(super) static RDZV_CONF: OptionRow =
    OptionRow::text("rdzv-conf", "K=V,…", "Settings of the rendezvous, as in join_timeout=600,is_host=1");
pub(super) static STANDALONE: OptionRow = OptionRow::flag(
    "standalone",
    "One node with a store on a free port, which is also what happens when nothing is said; \
     --rdzv-*, --master-addr and --master-port are ignored",
);
pub(super) static MAX_RESTARTS: OptionRow = OptionRow::int(
    "max-restarts",
    "N",
    "How often the workers are started again after one has failed [default: 0]",
);
pub(super) static MONITOR_INTERVAL: OptionRow = OptionRow::float(
    "monitor-interval",
    "SECONDS",
    "Accepted and checked, without effect: exits are noticed at once",
);
pub(super) static START_METHOD: OptionRow = OptionRow::choice(
    "start-method",
    &["spawn", "fork", "forkserver"],
    "Accepted, without effect: every worker is a fresh process",
);
pub(super) static EVENT_LOG_HANDLER: OptionRow = OptionRow::text(
    "event-log-handler",
    "null|console",
    "Where torch's events go: nowhere, or to standard error as JSON lines; handlers of your own need Python \
     [default: null]",
);
pub(super) static ROLE: OptionRow = OptionRow::text(
    "role",
    "NAME",
    "The workers' role, as in ROLE_NAME and the log prefix [default: default]",
);
pub(super) static MODULE: OptionRow =
    OptionRow::flag("module", "ENTRYPOINT is a Python module, run as `python -m`").short(b'm');
pub(super) static NO_PYTHON: OptionRow =
    OptionRow::flag("no-python", "ENTRYPOINT is a program; a name without a slash is looked up in PATH");
pub(super) static RUN_PATH: OptionRow = OptionRow::flag(
    "run-path",
    "Run ENTRYPOINT with Python's runpy.run_path, which records its errors; wins over --no-python and --module",
);
pub(super) static LOG_DIR: OptionRow = OptionRow::text(
    "log-dir",
    "DIR",
    "Base of the log tree; /dev/null for none [default: a new folder in the temporary folder]",
);
pub(super) static REDIRECTS: OptionRow = OptionRow::text(
    "redirects",
    "STREAMS",
    "Streams that go to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, \
     or by local rank as in 0:3,1:2 [default: 0]",
)
.short(b'r');
pub(super) static TEE: OptionRow = OptionRow::text(
    "tee",
    "STREAMS",
    "Streams that go to files and, with a prefix, to the console; written as for --redirects [default: 0]",
)
.short(b't');
pub(super) static LOG_LINE_PREFIX_TEMPLATE: OptionRow = OptionRow::text(
    "log-line-prefix-template",
    "TEMPLATE",
    "Prefix of tee'd lines, with ${role_name}, ${local_rank}, ${rank} and ${hostname} replaced \
     [default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, then [${role_name}${local_rank}]:]",
);
pub(super) static LOCAL_RANKS_FILTER: OptionRow = OptionRow::text(
    "local-ranks-filter",
    "RANKS",
    "Local ranks heard on the console, as in 0,2; files are not affected [default: all]",
);
pub(super) static DUPLICATE_STDOUT_FILTERS: OptionRow = OptionRow::text(
    "duplicate-stdout-filters",
    "TEXTS",
    "Copy tee'd stdout lines that contain one of these texts to filtered_stdout.log; commas between the texts, \
     two for a literal one",
);
pub(super) static DUPLICATE_STDERR_FILTERS: OptionRow =
    OptionRow::text("duplicate-stderr-filters", "TEXTS", "The same for stderr, to filtered_stderr.log");
pub(super) static NODE_RANK: OptionRow =
    OptionRow::int("node-rank", "N", "Rank of this node, from 0, of a static rendezvous [default: 0]");
pub(super) static MASTER_ADDR: OptionRow = OptionRow::text(
    "master-addr",
    "HOST",
    "MASTER_ADDR: the node with rank 0 of a static rendezvous [default: 127.0.0.1]",
);
pub(super) static MASTER_PORT: OptionRow = OptionRow::int(
    "master-port",
    "PORT",
    "The port of the store on the node with rank 0; for one node 0 is a free one. The run id is then `none` unless \
     --rdzv-id is given [default: 29500 for several nodes]",
);
pub(super) static LOCAL_ADDR: OptionRow = OptionRow::text(
    "local-addr",
    "HOST",
    "The address by which the other nodes reach this one: MASTER_ADDR where this node has rank 0 and the store is on \
     a free port [default: 127.0.0.1 for one node]",
);
pub(super) static LOGS_SPECS: OptionRow =
    OptionRow::text("logs-specs", "NAME", "Refused: it names a plug-in that only Python could load")
        .family(Family::None);
pub(super) static NUMA_BINDING: OptionRow = OptionRow::choice(
    "numa-binding",
    &["node", "socket", "exclusive", "core-complex"],
    "Bind each worker to CPUs near its accelerator: its NUMA node, its socket, its share of the node's cores, or one \
     last-level cache [default: not bound]",
)
.family(Family::None);
pub(super) static SIGNALS_TO_HANDLE: OptionRow = OptionRow::text(
    "signals-to-handle",
    "SIGNALS",
    "Signals that stop the job; the workers get the same one [default: SIGTERM,SIGINT,SIGHUP,SIGQUIT]",
);
pub(super) static SHUTDOWN_TIMEOUT: OptionRow = OptionRow::int(
    "shutdown-timeout",
    "SECONDS",
    "From the signal that stops the workers to SIGKILL \
     [default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, then 30]",
);
pub(super) static VIRTUAL_LOCAL_RANK: OptionRow = OptionRow::flag(
    "virtual-local-rank",
    "Each worker sees one device of CUDA_VISIBLE_DEVICES (or HIP_VISIBLE_DEVICES) and has LOCAL_RANK=0",
);
pub(super) static PRINT_COMPLETION: OptionRow =
    OptionRow::choice("print-completion", SHELLS, "Print a completion script for this shell and exit")
        .family(Family::None);

/// Every option of torchrun 2.15, in argparse's order, which is the order of the names in its messages.
pub(super) const TABLE: &[&OptionRow] = &[
    &HELP,
    &NNODES,
    &NPROC_PER_NODE,
    &RDZV_BACKEND,
    &RDZV_ENDPOINT,
    &RDZV_ID,
    &RDZV_CONF,
    &STANDALONE,
    &MAX_RESTARTS,
    &MONITOR_INTERVAL,
    &START_METHOD,
    &EVENT_LOG_HANDLER,
    &ROLE,
    &MODULE,
    &NO_PYTHON,
    &RUN_PATH,
    &LOG_DIR,
    &REDIRECTS,
    &TEE,
    &LOG_LINE_PREFIX_TEMPLATE,
    &LOCAL_RANKS_FILTER,
    &DUPLICATE_STDOUT_FILTERS,
    &DUPLICATE_STDERR_FILTERS,
    &NODE_RANK,
    &MASTER_ADDR,
    &MASTER_PORT,
    &LOCAL_ADDR,
    &LOGS_SPECS,
    &NUMA_BINDING,
    &SIGNALS_TO_HANDLE,
    &SHUTDOWN_TIMEOUT,
    &VIRTUAL_LOCAL_RANK,
    &PRINT_COMPLETION,
];
