//! Our own options: valid beside torchrun's with and without the word `run`, never abbreviated, and unknown
//! under the name `torchrun`, where their `RANKRUN_*` variables still count.

use std::ffi::OsString;

use clap::{ArgAction, Args};

use super::help::heading::{ADVANCED, DEVICES, NODES, OUTPUT, RESTARTS, STOPPING, WORKERS};
use super::network::StoreLimit;
use super::option::{Flag, OptionValue};
use super::rendezvous::LeaseTime;
use super::torchrun::TorchrunArgs;
use super::values::{PositiveTime, Time};
use rankrun_core::device::order::DeviceOrder;
use rankrun_core::device::{DeviceType, Visibility};
use rankrun_core::spec::StdinPolicy;
use rankrun_core::spec::options::IndependentOptions;
use rankrun_core::spec::rendezvous::PortRange;
use rankrun_core::spec::stop::EarlyWarning;

/// The options of rankrun.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct RankrunArgs {
    #[command(flatten)]
    pub(super) torchrun: TorchrunArgs,
    /// Which local rank reads the launcher's standard input [default: all]
    #[arg(long, value_name = "RANK|all|none", help_heading = WORKERS)]
    pub(super) stdin: Option<OptionValue<StdinPolicy>>,
    /// How long the workers may take to end before SIGKILL: the same as --shutdown-timeout, with fractions and units; of
    /// the two, the last one given counts [default: 30]
    #[arg(long, value_name = "TIME", help_heading = STOPPING, display_order = 0)]
    pub(super) grace: Option<OptionValue<Time>>,
    /// How long processes that the workers have left behind may go on after a success, before they are stopped
    /// [default: 30]
    #[arg(long, value_name = "TIME", help_heading = STOPPING)]
    pub(super) leftover_grace: Option<OptionValue<Time>>,
    #[command(flatten)]
    pub(super) independent: IndependentOptions,
    /// A generation has failed if not every worker has joined the store within this time of its start [default: no
    /// limit]
    #[arg(long, value_name = "TIME", help_heading = STOPPING)]
    pub(super) start_timeout: Option<OptionValue<PositiveTime>>,
    /// Stop the whole job, restarts included, after this time, and say what each rank was doing: seconds as in 90,
    /// units as in 5m or 1h30m, or as Slurm writes it, 02:30:00 or 1-12:00:00 [default: none]
    #[arg(long, value_name = "TIME", help_heading = STOPPING, display_order = 1)]
    pub(super) time_limit: Option<OptionValue<PositiveTime>>,
    /// Send the workers this signal, as in USR1@60, so long before the time limit; it stops nothing [default: none; 60
    /// s before]
    #[arg(long, value_name = "SIGNAL[@TIME]", help_heading = STOPPING)]
    pub(super) warn_signal: Option<OptionValue<EarlyWarning>>,
    /// A node whose launcher sends no heartbeat for so long is lost, and the others go on without it [default: 5;
    /// torchrun's launchers have 15]
    #[arg(long, value_name = "TIME", help_heading = NODES)]
    pub(super) lease: Option<OptionValue<LeaseTime>>,
    /// How long the nodes may take to come together, at the start and after a restart; the same as join_timeout of
    /// --rdzv-conf, and timeout where it is static [default: 10m; static 15m]
    #[arg(long, value_name = "TIME", help_heading = NODES)]
    pub(super) join_timeout: Option<OptionValue<PositiveTime>>,
    /// How long more nodes are waited for once there are MIN of --nnodes; the same as last_call_timeout of --rdzv-conf
    /// [default: 30]
    #[arg(long, value_name = "TIME", help_heading = NODES)]
    pub(super) last_call: Option<OptionValue<PositiveTime>>,
    /// The network interface by which the other nodes reach this one, as in eth0, or lo where all nodes are on this
    /// machine; the workers get it as GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME and NCCL_SOCKET_IFNAME where these are not
    /// set, and the stores listen on it alone [default: that of the way to the endpoint, not for NCCL]
    #[arg(long, value_name = "NAME", help_heading = NODES)]
    pub(super) iface: Option<OptionValue<String>>,
    /// Listen on ports from A to B only, as in 29500-29599; a port of --master-port or --rdzv-endpoint is taken as it
    /// stands [default: any free port]
    #[arg(long, value_name = "A-B", help_heading = NODES)]
    pub(super) port_range: Option<OptionValue<PortRange>>,
    /// Most memory for the values in a store of this launcher, as in 512MiB or 4GiB, and as much again for requests and
    /// answers under way; what does not fit is refused, and a warning says so once [default: 1GiB]
    #[arg(long, value_name = "SIZE", help_heading = ADVANCED)]
    pub(super) store_limit: Option<OptionValue<StoreLimit>>,
    /// NCCL's library for workers in Rust, which get it as RANKRUN_NCCL [default: RANKRUN_NCCL, then where the loader
    /// finds libnccl.so.2, then the wheel of the active Python environment]
    #[arg(long, value_name = "PATH", help_heading = ADVANCED)]
    pub(super) nccl_lib: Option<OptionValue<OsString>>,
    /// Take what neither the command line nor a variable says from this file, as in rankrun.toml
    #[arg(long, value_name = "PATH", help_heading = ADVANCED)]
    pub(super) config: Option<OptionValue<OsString>>,
    /// Say more: -v what is done, -vv each step [default: LOGLEVEL, then warnings only]
    #[arg(short, long, help_heading = OUTPUT)]
    pub(super) verbose: Option<OptionValue<Flag>>,
    /// Start all workers but this local rank, and say how to start that one by hand, as in a debugger
    #[arg(long, value_name = "RANK", help_heading = WORKERS)]
    pub(super) leave_out: Option<OptionValue<i128>>,
    /// Workers over all nodes: each node has an equal share, and the first ones one more where N cannot be divided;
    /// instead of --nproc-per-node, and for a fixed number of nodes
    #[arg(long, value_name = "N", help_heading = WORKERS)]
    pub(super) total_workers: Option<OptionValue<i128>>,
    /// Start the program of these ranks by a command, as in 0:'nsys profile -o r%r', with RANKS as in 0,2 or 0-3 or all;
    /// %r is the rank, %l the local rank, %h the host name, %% a percent sign. May be repeated; in a variable or a file
    /// one stands on each line
    #[arg(long, value_name = "RANKS:COMMAND", help_heading = WORKERS)]
    pub(super) wrap: Option<OptionValue<String>>,
    /// Which accelerators, in the order of the ranks: indices as in 3,1, ranges 0-3, exclusions -2, UUIDs or their
    /// beginnings, MIG devices 1:0, PCI addresses; `idle` the unused ones, `none` the CPUs [default: all that are
    /// visible]
    #[arg(long, value_name = "LIST|all|idle|none", allow_negative_numbers = true, help_heading = DEVICES, display_order = 0)]
    pub(super) devices: Option<OptionValue<String>>,
    /// Which kind of device [default: the first of these that is there]
    #[arg(long, help_heading = DEVICES, display_order = 1)]
    pub(super) device_type: Option<OptionValue<DeviceType>>,
    /// In which order the devices become ranks; `fastest` is the CUDA driver's own answer, `topology` makes neighbours
    /// of those on the fastest link [default: as-listed]
    #[arg(long, help_heading = DEVICES)]
    pub(super) device_order: Option<OptionValue<DeviceOrder>>,
    /// What a worker sees: the whole list, of which it takes its LOCAL_RANK, or its own device alone, with LOCAL_RANK 0
    /// [default: all]
    #[arg(long, help_heading = DEVICES)]
    pub(super) device_visibility: Option<OptionValue<Visibility>>,
    /// Let several workers share a device where there are more workers than devices
    #[arg(long, help_heading = DEVICES)]
    pub(super) oversubscribe: Option<OptionValue<Flag>>,
    /// Share these CPUs evenly among the workers, as in 1,3-5,7, or one CPU of each physical core that the launcher may
    /// use; OMP_NUM_THREADS, unless set, is the number for each worker [default: not bound]
    #[arg(long, value_name = "all|LIST", help_heading = DEVICES)]
    pub(super) bind_cores: Option<OptionValue<String>>,
    /// Look at the health of the devices before the start and after a failure; a dead one is named and refused
    #[arg(long, help_heading = DEVICES)]
    pub(super) check_devices: Option<OptionValue<Flag>>,
    /// Look at the health of the devices as --check-devices does, and leave a dead one out
    #[arg(long, help_heading = DEVICES)]
    pub(super) exclude_unhealthy: Option<OptionValue<Flag>>,
    /// How long the library of a device's driver may take to answer [default: 30]
    #[arg(long, value_name = "SECONDS", help_heading = ADVANCED)]
    pub(super) probe_timeout: Option<OptionValue<f64>>,
    /// Allow --max-restarts within any span of this length, as in 1h, instead of over the whole job
    #[arg(long, value_name = "TIME", help_heading = RESTARTS)]
    pub(super) restart_window: Option<OptionValue<PositiveTime>>,
    /// Wait for so long before the first restart, as in 1s, and longer before each further one [default: 0]
    #[arg(long, value_name = "TIME", help_heading = RESTARTS)]
    pub(super) restart_delay: Option<OptionValue<Time>>,
    /// Each wait before a restart is so many times the one before [default: 2]
    #[arg(long, value_name = "F", help_heading = RESTARTS)]
    pub(super) restart_factor: Option<OptionValue<f64>>,
    /// No wait before a restart is longer [default: 5m]
    #[arg(long, value_name = "TIME", help_heading = RESTARTS)]
    pub(super) restart_max_delay: Option<OptionValue<PositiveTime>>,
    /// Make each wait shorter by chance, by up to this share of it, 0 to 1 [default: 0]
    #[arg(long, value_name = "SHARE", help_heading = RESTARTS)]
    pub(super) restart_jitter: Option<OptionValue<f64>>,
    /// Workers that ran for so long before they failed begin anew with --max-restarts and the first delay
    #[arg(long, value_name = "TIME", help_heading = RESTARTS)]
    pub(super) restart_reset: Option<OptionValue<PositiveTime>>,
    /// What a failure means, as in exit=3:fail,signal=KILL:restart,exit=5:succeed; the first that fits decides
    #[arg(long, value_name = "RULES", help_heading = RESTARTS)]
    pub(super) restart_rules: Option<OptionValue<String>>,
    /// Give up when restarts change no file in this folder, where the checkpoints are
    #[arg(long, value_name = "DIR", help_heading = RESTARTS)]
    pub(super) progress_dir: Option<OptionValue<OsString>>,
    /// How many restarts in a row may change no file in --progress-dir [default: 3]
    #[arg(long, value_name = "N", help_heading = RESTARTS)]
    pub(super) progress_restarts: Option<OptionValue<i128>>,
    /// Do not say before the start which rank has which device, or why none has one
    #[arg(long, help_heading = OUTPUT)]
    pub(super) quiet: Option<OptionValue<Flag>>,
    /// Print the version and exit
    #[arg(long, action = ArgAction::Version)]
    pub(super) version: Option<bool>,
    /// The entrypoint and its arguments.
    #[arg(last = true)]
    pub(super) program: Option<Vec<OsString>>,
}
