//! Our own options: valid beside torchrun's with and without the word `run`, never abbreviated, and unknown
//! under the name `torchrun`, where their `RANKRUN_*` variables still count.

use std::ffi::OsString;

use clap::{ArgAction, Args};

use super::exclude_node::{FailureShareText, NodeNames};
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
    /// How long the workers may take to stop before SIGKILL; --shutdown-timeout is the same in whole seconds;
    /// the last of the two counts [default: 30]
    #[arg(long, value_name = "TIME", help_heading = STOPPING, display_order = 0)]
    pub(super) grace: Option<OptionValue<Time>>,
    /// After a success, how long the launcher waits for processes that the workers left running, before it
    /// stops them [default: 30]
    #[arg(long, value_name = "TIME", help_heading = STOPPING)]
    pub(super) leftover_grace: Option<OptionValue<Time>>,
    #[command(flatten)]
    pub(super) independent: IndependentOptions,
    /// A start has failed if a worker has not joined the store after this time [default: no limit]
    #[arg(long, value_name = "TIME", help_heading = STOPPING)]
    pub(super) start_timeout: Option<OptionValue<PositiveTime>>,
    /// The workers have failed if none of them shows progress for this time: heartbeats that the program sends, and
    /// the collectives that PyTorch's flight recorder lists [default: only a warning, after 5m]
    #[arg(long, value_name = "TIME", help_heading = STOPPING)]
    pub(super) hang_timeout: Option<OptionValue<PositiveTime>>,
    /// No hang is found before this time or a worker's first heartbeat, since a program restores, compiles and
    /// warms up [default: 10m]
    #[arg(long, value_name = "TIME", help_heading = STOPPING)]
    pub(super) first_step_timeout: Option<OptionValue<Time>>,
    /// Stop the whole job after this time, restarts included, and print what each rank was doing; 90 is
    /// seconds; 5m, 1h30m and Slurm's 02:30:00 and 1-12:00:00 are understood too [default: none]
    #[arg(long, value_name = "TIME", help_heading = STOPPING, display_order = 1)]
    pub(super) time_limit: Option<OptionValue<PositiveTime>>,
    /// Send the workers this signal before the time limit: USR1@60 is SIGUSR1, 60 s before. It stops nothing
    /// [default: none; 60 s before]
    #[arg(long, value_name = "SIGNAL[@TIME]", help_heading = STOPPING)]
    pub(super) warn_signal: Option<OptionValue<EarlyWarning>>,
    /// Start the launch on each of these hosts by ssh, in the order of the node ranks, as in node1,node2:4; the
    /// number is --nproc-per-node there. docs/ssh.md says more
    #[arg(long, value_name = "HOST[:N],…", help_heading = NODES)]
    pub(super) hosts: Option<OptionValue<String>>,
    /// The same with the hosts of a file: a line NAME, NAME slots=N or NAME:N for each
    #[arg(long, value_name = "FILE", help_heading = NODES)]
    pub(super) hostfile: Option<OptionValue<OsString>>,
    /// With --hosts: variables for all hosts. A NAME has the value that it has here. It may be repeated
    #[arg(long, value_name = "NAME,…|NAME=VALUE", help_heading = NODES)]
    pub(super) export: Option<OptionValue<String>>,
    /// With --hosts: the ssh client and its options, as in 'ssh -p 2222' [default: ssh]
    #[arg(long, value_name = "COMMAND", help_heading = NODES)]
    pub(super) ssh: Option<OptionValue<String>>,
    /// A node is lost when its launcher has sent no heartbeat for this time; the others go on without it
    /// [default: 5; torchrun's launchers have 15]
    #[arg(long, value_name = "TIME", help_heading = NODES)]
    pub(super) lease: Option<OptionValue<LeaseTime>>,
    /// How long a node waits for the others, at the start and after a restart; in --rdzv-conf it is
    /// join_timeout, or timeout if static [default: 10m; static 15m]
    #[arg(long, value_name = "TIME", help_heading = NODES)]
    pub(super) join_timeout: Option<OptionValue<PositiveTime>>,
    /// When MIN nodes of --nnodes are there, how long to wait for more; in --rdzv-conf it is last_call_timeout
    /// [default: 30]
    #[arg(long, value_name = "TIME", help_heading = NODES)]
    pub(super) last_call: Option<OptionValue<PositiveTime>>,
    /// Names of nodes that take no part in the job: a launcher on one of them ends at once, with status 0
    #[arg(long, value_name = "NAME,…", help_heading = NODES)]
    pub(super) exclude_node: Option<OptionValue<NodeNames>>,
    /// This node leaves the job when its workers failed first in K of the last N restarts, if the other nodes and
    /// the spares are enough for MIN of --nnodes. The node that hosts the store stays [default: never]
    #[arg(long, value_name = "K/N", help_heading = NODES)]
    pub(super) exclude_node_after: Option<OptionValue<FailureShareText>>,
    /// The network interface to the other nodes, such as eth0; lo if all nodes are on this machine. The stores
    /// listen on it alone. The workers get it as GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME and NCCL_SOCKET_IFNAME,
    /// unless these are set [default: that of the way to the endpoint, not for NCCL]
    #[arg(long, value_name = "NAME", help_heading = NODES)]
    pub(super) iface: Option<OptionValue<String>>,
    /// Listen on ports from A to B only, as in 29500-29599. A port in --master-port or --rdzv-endpoint may be
    /// another one [default: any free port]
    #[arg(long, value_name = "A-B", help_heading = NODES)]
    pub(super) port_range: Option<OptionValue<PortRange>>,
    /// The most memory for the values in a store, as in 512MiB or 4GiB, and as much again for its requests and
    /// answers. A value that does not fit is refused, with one warning [default: 1GiB]
    #[arg(long, value_name = "SIZE", help_heading = ADVANCED)]
    pub(super) store_limit: Option<OptionValue<StoreLimit>>,
    /// The file of NCCL's library, for workers in Rust; they find it in RANKRUN_NCCL [default: RANKRUN_NCCL,
    /// then where the loader finds libnccl.so.2, then the wheel of the active Python environment]
    #[arg(long, value_name = "PATH", help_heading = ADVANCED)]
    pub(super) nccl_lib: Option<OptionValue<OsString>>,
    /// A file with settings, such as rankrun.toml. The command line and variables come before it
    #[arg(long, value_name = "PATH", help_heading = ADVANCED)]
    pub(super) config: Option<OptionValue<OsString>>,
    /// Say more: -v what is done, -vv each step [default: LOGLEVEL, then warnings only]
    #[arg(short, long, help_heading = OUTPUT)]
    pub(super) verbose: Option<OptionValue<Flag>>,
    /// Start all workers but this local rank, and print the command that starts it in another terminal, for a
    /// debugger
    #[arg(long, value_name = "RANK", help_heading = WORKERS)]
    pub(super) leave_out: Option<OptionValue<i128>>,
    /// The workers of all nodes together, in place of --nproc-per-node; nodes have equal shares, and if N
    /// cannot be divided, the first ones have one more. The number of nodes must be fixed
    #[arg(long, value_name = "N", help_heading = WORKERS)]
    pub(super) total_workers: Option<OptionValue<i128>>,
    /// Start these ranks below a tool, as in 0:'nsys profile -o r%r'. RANKS is a list (0,2 or 0-3) or all. In
    /// COMMAND %r is the rank, %l the local rank, %h the host name, %% a percent sign. It may be repeated; a
    /// variable or a file has one on each line
    #[arg(long, value_name = "RANKS:COMMAND", help_heading = WORKERS)]
    pub(super) wrap: Option<OptionValue<String>>,
    /// The devices, in the order of the ranks: 3,1 gives rank 0 device 3. Also ranges (0-3), exclusions (-2:
    /// all but 2), UUIDs or their beginnings, MIG devices (1:0) and PCI addresses; `idle` is the unused ones,
    /// `none` the CPUs [default: all that are visible]
    #[arg(long, value_name = "LIST|all|idle|none", allow_negative_numbers = true, help_heading = DEVICES, display_order = 0)]
    pub(super) devices: Option<OptionValue<String>>,
    /// The kind of device [default: the first of these that is there]
    #[arg(long, help_heading = DEVICES, display_order = 1)]
    pub(super) device_type: Option<OptionValue<DeviceType>>,
    /// The order in which devices are given to ranks: `fastest` is the CUDA driver's own order; `topology`
    /// gives consecutive ranks devices on the fastest links [default: as-listed]
    #[arg(long, help_heading = DEVICES)]
    pub(super) device_order: Option<OptionValue<DeviceOrder>>,
    /// What a worker sees: all devices of the job, or only its own. With `all` the program takes the one at its
    /// LOCAL_RANK; with `own` LOCAL_RANK is 0 [default: all]
    #[arg(long, help_heading = DEVICES)]
    pub(super) device_visibility: Option<OptionValue<Visibility>>,
    /// Allow more workers than devices; they then share
    #[arg(long, help_heading = DEVICES)]
    pub(super) oversubscribe: Option<OptionValue<Flag>>,
    /// Bind each worker to its own share of these CPUs, as in 1,3-5,7; `all` is one CPU of each physical core.
    /// OMP_NUM_THREADS, unless set, is the size of the share [default: not bound]
    #[arg(long, value_name = "all|LIST", help_heading = DEVICES)]
    pub(super) bind_cores: Option<OptionValue<String>>,
    /// Check the devices before the start and after a failure; a dead one is named, and the launch is refused
    #[arg(long, help_heading = DEVICES)]
    pub(super) check_devices: Option<OptionValue<Flag>>,
    /// Check the devices as --check-devices does, but leave a dead one out and go on
    #[arg(long, help_heading = DEVICES)]
    pub(super) exclude_unhealthy: Option<OptionValue<Flag>>,
    /// How long the library of a device's driver may take to answer [default: 30]
    #[arg(long, value_name = "SECONDS", help_heading = ADVANCED)]
    pub(super) probe_timeout: Option<OptionValue<f64>>,
    /// Count only the restarts of this last span, as in 1h, against --max-restarts
    #[arg(long, value_name = "TIME", help_heading = RESTARTS)]
    pub(super) restart_window: Option<OptionValue<PositiveTime>>,
    /// Wait this long before the first restart, as in 1s; each further wait is longer [default: 0]
    #[arg(long, value_name = "TIME", help_heading = RESTARTS)]
    pub(super) restart_delay: Option<OptionValue<Time>>,
    /// Each wait before a restart is F times the one before it [default: 2]
    #[arg(long, value_name = "F", help_heading = RESTARTS)]
    pub(super) restart_factor: Option<OptionValue<f64>>,
    /// The longest wait before a restart [default: 5m]
    #[arg(long, value_name = "TIME", help_heading = RESTARTS)]
    pub(super) restart_max_delay: Option<OptionValue<PositiveTime>>,
    /// Shorten each wait by a random part of up to this share, 0 to 1 [default: 0]
    #[arg(long, value_name = "SHARE", help_heading = RESTARTS)]
    pub(super) restart_jitter: Option<OptionValue<f64>>,
    /// When the workers have run for this long, a later failure counts as the first: all restarts and the first
    /// delay are back
    #[arg(long, value_name = "TIME", help_heading = RESTARTS)]
    pub(super) restart_reset: Option<OptionValue<PositiveTime>>,
    /// What follows from a failure, as in exit=3:fail,signal=KILL:restart,exit=5:succeed. The first rule that
    /// fits counts
    #[arg(long, value_name = "RULES", help_heading = RESTARTS)]
    pub(super) restart_rules: Option<OptionValue<String>>,
    /// The folder of the checkpoints; the job ends when restarts lead to the same failure and change no file in it
    #[arg(long, value_name = "DIR", help_heading = RESTARTS)]
    pub(super) progress_dir: Option<OptionValue<OsString>>,
    /// End the job after this many restarts in a row that lead to the same failure without progress: no change in
    /// --progress-dir, or without it no higher step in the heartbeats [default with --progress-dir: 3]
    #[arg(long, value_name = "N", help_heading = RESTARTS)]
    pub(super) progress_restarts: Option<OptionValue<i128>>,
    /// Leave out the lines about the devices of the ranks
    #[arg(long, help_heading = OUTPUT)]
    pub(super) quiet: Option<OptionValue<Flag>>,
    /// Print the version and exit
    #[arg(long, action = ArgAction::Version)]
    pub(super) version: Option<bool>,
    /// The entrypoint and its arguments.
    #[arg(last = true)]
    pub(super) program: Option<Vec<OsString>>,
}
