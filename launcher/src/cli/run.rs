//! Our own options: valid beside torchrun's with and without the word `run`, never abbreviated, and unknown
//! under the name `torchrun`, where their `RANKRUN_*` variables still count.

use super::option::{Family, OptionRow};

pub(super) static STDIN: OptionRow = OptionRow::rank_or_word(
    "stdin",
    "RANK|all|none",
    "Which local rank reads the launcher's standard input [default: all]",
)
.family(Family::Rankrun);
pub(super) static GRACE: OptionRow = OptionRow::text(
    "grace",
    "TIME",
    "The same as --shutdown-timeout, and takes fractions and units; of the two, the last one given counts",
)
.family(Family::Rankrun);
pub(super) static LEFTOVER_GRACE: OptionRow = OptionRow::text(
    "leftover-grace",
    "TIME",
    "How long processes that the workers have left behind may go on after a success, before they are stopped \
     [default: 30]",
)
.family(Family::Rankrun);
pub(super) static CONFIG: OptionRow = OptionRow::text(
    "config",
    "PATH",
    "Take what neither the command line nor a variable says from this file, as in rankrun.toml",
)
.family(Family::Rankrun);
pub(super) static VERBOSE: OptionRow = OptionRow::flag(
    "verbose",
    "Say more: -v what is done, -vv each step [default: LOGLEVEL, then warnings only]",
)
.short(b'v')
.family(Family::Rankrun);
pub(super) static LEAVE_OUT: OptionRow = OptionRow::int(
    "leave-out",
    "RANK",
    "Start all workers but this local rank, and say how to start that one by hand, as in a debugger",
)
.family(Family::Rankrun);
pub(super) static DEVICES: OptionRow = OptionRow::text(
    "devices",
    "LIST|all|idle|none",
    "Which accelerators, in the order of the ranks: indices as in 3,1, ranges 0-3, exclusions -2, UUIDs or their \
     beginnings, MIG devices 1:0, PCI addresses; `idle` those that nobody uses, `none` the CPUs \
     [default: all that are visible]",
)
.family(Family::Rankrun);
pub(super) static DEVICE_TYPE: OptionRow = OptionRow::choice(
    "device-type",
    &["cuda", "rocm", "xpu", "hpu", "npu", "mps", "cpu"],
    "Which kind of device [default: the first of these that is there]",
)
.family(Family::Rankrun);
pub(super) static DEVICE_ORDER: OptionRow = OptionRow::choice(
    "device-order",
    &["pci", "fastest", "as-listed", "free-memory", "topology"],
    "In which order the devices become ranks; `fastest` is the CUDA driver's own answer, `topology` makes \
     neighbours of those on the fastest link [default: as-listed]",
)
.family(Family::Rankrun);
pub(super) static DEVICE_VISIBILITY: OptionRow = OptionRow::choice(
    "device-visibility",
    &["all", "own"],
    "What a worker sees: the whole list, of which it takes its LOCAL_RANK, or its own device alone, with LOCAL_RANK 0 \
     [default: all]",
)
.family(Family::Rankrun);
pub(super) static OVERSUBSCRIBE: OptionRow = OptionRow::flag(
    "oversubscribe",
    "Let several workers share a device where there are more workers than devices",
)
.family(Family::Rankrun);
pub(super) static CHECK_DEVICES: OptionRow = OptionRow::flag(
    "check-devices",
    "Look at the health of the devices before the start and after a failure; a dead one is named and refused",
)
.family(Family::Rankrun);
pub(super) static EXCLUDE_UNHEALTHY: OptionRow =
    OptionRow::flag("exclude-unhealthy", "The same, but a dead device is left out").family(Family::Rankrun);
pub(super) static PROBE_TIMEOUT: OptionRow = OptionRow::float(
    "probe-timeout",
    "SECONDS",
    "How long the library of a device's driver may take to answer [default: 30]",
)
.family(Family::Rankrun);
pub(super) static RESTART_WINDOW: OptionRow = OptionRow::text(
    "restart-window",
    "TIME",
    "Allow --max-restarts within any span of this length, as in 1h, instead of over the whole job",
)
.family(Family::Rankrun);
pub(super) static RESTART_DELAY: OptionRow = OptionRow::text(
    "restart-delay",
    "TIME",
    "Wait for so long before the first restart, as in 1s, and longer before each further one [default: 0]",
)
.family(Family::Rankrun);
pub(super) static RESTART_FACTOR: OptionRow = OptionRow::float(
    "restart-factor",
    "F",
    "Each wait before a restart is so many times the one before [default: 2]",
)
.family(Family::Rankrun);
pub(super) static RESTART_MAX_DELAY: OptionRow =
    OptionRow::text("restart-max-delay", "TIME", "No wait before a restart is longer [default: 5m]")
        .family(Family::Rankrun);
pub(super) static RESTART_JITTER: OptionRow = OptionRow::float(
    "restart-jitter",
    "SHARE",
    "Make each wait shorter by chance, by up to this share of it, 0 to 1 [default: 0]",
)
.family(Family::Rankrun);
pub(super) static RESTART_RESET: OptionRow = OptionRow::text(
    "restart-reset",
    "TIME",
    "Workers that ran for so long before they failed begin anew with --max-restarts and the first delay",
)
.family(Family::Rankrun);
pub(super) static RESTART_RULES: OptionRow = OptionRow::text(
    "restart-rules",
    "RULES",
    "What a failure means, as in exit=3:fail,signal=KILL:restart,exit=5:succeed; the first that fits decides",
)
.family(Family::Rankrun);
pub(super) static PROGRESS_DIR: OptionRow = OptionRow::text(
    "progress-dir",
    "DIR",
    "Give up when restarts change no file in this folder, where the checkpoints are",
)
.family(Family::Rankrun);
pub(super) static PROGRESS_RESTARTS: OptionRow =
    OptionRow::int("progress-restarts", "N", "How many restarts in a row may change none [default: 3]")
        .family(Family::Rankrun);
pub(super) static QUIET: OptionRow =
    OptionRow::flag("quiet", "Do not say before the start which rank has which device, or why none has one")
        .family(Family::Rankrun);
pub(super) static START_TIMEOUT: OptionRow = OptionRow::text(
    "start-timeout",
    "TIME",
    "A generation has failed if not every worker has joined the store within this time of its start [default: no limit]",
)
.family(Family::Rankrun);
pub(super) static TIME_LIMIT: OptionRow = OptionRow::text(
    "time-limit",
    "TIME",
    "Stop the whole job, restarts included, after this time, and say what each rank was doing: seconds as in 90, units \
     as in 5m or 1h30m, or as Slurm writes it, 02:30:00 or 1-12:00:00 [default: none]",
)
.family(Family::Rankrun);
pub(super) static WARN_SIGNAL: OptionRow = OptionRow::text(
    "warn-signal",
    "SIGNAL[@TIME]",
    "Send the workers this signal, as in USR1@60, so long before the time limit; it stops nothing [default: none; \
     60 s before]",
)
.family(Family::Rankrun);
pub(super) static LEASE: OptionRow = OptionRow::text(
    "lease",
    "TIME",
    "A node whose launcher gives no sign of life for so long is lost, and the others go on without it \
     [default: 5; torchrun's launchers have 15]",
)
.family(Family::Rankrun);
pub(super) static JOIN_TIMEOUT: OptionRow = OptionRow::text(
    "join-timeout",
    "TIME",
    "How long the nodes may take to come together, at the start and after a restart; the same as join_timeout of \
     --rdzv-conf, and timeout where it is static [default: 10m; static 15m]",
)
.family(Family::Rankrun);
pub(super) static LAST_CALL: OptionRow = OptionRow::text(
    "last-call",
    "TIME",
    "How long more nodes are waited for once there are MIN of --nnodes; the same as last_call_timeout of --rdzv-conf \
     [default: 30]",
)
.family(Family::Rankrun);
pub(super) static IFACE: OptionRow = OptionRow::text(
    "iface",
    "NAME",
    "The network interface by which the other nodes reach this one, as in eth0, or lo where all nodes are on this \
     machine; the workers get it as GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME and NCCL_SOCKET_IFNAME where these are not \
     set, and the stores listen on it alone [default: that of the way to the endpoint, not for NCCL]",
)
.family(Family::Rankrun);
pub(super) static PORT_RANGE: OptionRow = OptionRow::text(
    "port-range",
    "A-B",
    "Listen on ports from A to B only, as in 29500-29599; a port of --master-port or --rdzv-endpoint is taken as it \
     stands [default: any free port]",
)
.family(Family::Rankrun);
pub(super) static STORE_LIMIT: OptionRow = OptionRow::text(
    "store-limit",
    "SIZE",
    "Most memory for the values in a store of this launcher, as in 512MiB or 4GiB, and as much again for requests and \
     answers under way; what does not fit is refused, and a warning says so once [default: 1GiB]",
)
.family(Family::Rankrun);
pub(super) static NCCL_LIB: OptionRow = OptionRow::text(
    "nccl-lib",
    "PATH",
    "NCCL's library for workers in Rust, which get it as RANKRUN_NCCL [default: RANKRUN_NCCL, then where the loader \
     finds libnccl.so.2, then the wheel of the active Python environment]",
)
.family(Family::Rankrun);
pub(super) static VERSION: OptionRow =
    OptionRow::flag("version", "Print the version and exit").family(Family::None);

/// Every option that torchrun does not know.
pub(super) const TABLE: &[&OptionRow] = &[
    &STDIN,
    &GRACE,
    &LEFTOVER_GRACE,
    &START_TIMEOUT,
    &TIME_LIMIT,
    &WARN_SIGNAL,
    &LEASE,
    &JOIN_TIMEOUT,
    &LAST_CALL,
    &IFACE,
    &PORT_RANGE,
    &STORE_LIMIT,
    &NCCL_LIB,
    &CONFIG,
    &VERBOSE,
    &LEAVE_OUT,
    &DEVICES,
    &DEVICE_TYPE,
    &DEVICE_ORDER,
    &DEVICE_VISIBILITY,
    &OVERSUBSCRIBE,
    &CHECK_DEVICES,
    &EXCLUDE_UNHEALTHY,
    &PROBE_TIMEOUT,
    &RESTART_WINDOW,
    &RESTART_DELAY,
    &RESTART_FACTOR,
    &RESTART_MAX_DELAY,
    &RESTART_JITTER,
    &RESTART_RESET,
    &RESTART_RULES,
    &PROGRESS_DIR,
    &PROGRESS_RESTARTS,
    &QUIET,
    &VERSION,
];
