//! torchrun 2.15's options, in the order of its help: names, types and defaults. The sentences are ours.

use std::ffi::OsString;

use clap::{ArgAction, Args};

use super::completion::Shell;
use super::help::heading::{COMPATIBILITY, DEVICES, NODES, OUTPUT, RESTARTS, STOPPING, WORKERS};
use super::option::{Flag, OptionValue, StartMethod};
use rankrun_core::device::affinity::NumaBinding;

/// The usage that torchrun prints before an error.
pub(super) const USAGE: &str = include_str!("torchrun_usage.txt");

/// The options of torchrun. Clap has neither their defaults nor their variables: `settings` reads them.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct TorchrunArgs {
    /// Print this help and exit
    #[arg(short, long, action = ArgAction::Help)]
    pub(super) help: Option<bool>,
    /// Number of nodes; each runs one launcher; with c10d MIN:MAX allows any number between [default: 1]
    #[arg(long, value_name = "N|MIN:MAX", help_heading = NODES, display_order = 0)]
    pub(super) nnodes: Option<OptionValue<String>>,
    /// Workers on this node: a number, or one for each `cpu`, `gpu` (CUDA or ROCm), `xpu` or other type of
    /// device; `auto` is one for each accelerator, or for each CPU if there is none. Only CPUs that the
    /// launcher may use and devices that are visible count [default: 1; under the name rankrun one per visible
    /// accelerator, 1 without any]. Under the name rankrun, -np N is the same
    #[arg(long, value_name = "N|auto|gpu|xpu|cpu|TYPE", help_heading = WORKERS)]
    pub(super) nproc_per_node: Option<OptionValue<String>>,
    /// How nodes find each other: with `static` their number and ranks are fixed, and there is one store, on
    /// --master-port of node 0; with `c10d` nodes may come and go, they meet at --rdzv-endpoint, and the
    /// workers' store is on a free port. etcd is not supported yet [default: static]
    #[arg(long, value_name = "static|c10d", help_heading = NODES)]
    pub(super) rdzv_backend: Option<OptionValue<String>>,
    /// The address of the node where all meet, the same on each; an IPv6 address stands in brackets [default:
    /// --master-addr and --master-port; for c10d localhost:29400]
    #[arg(long, value_name = "HOST[:PORT]", help_heading = NODES)]
    pub(super) rdzv_endpoint: Option<OptionValue<String>>,
    /// The run id, the same on all nodes [default: a fresh UUID; `none` with c10d, an endpoint, --master-port or
    /// several nodes]
    #[arg(long, value_name = "ID", help_heading = NODES)]
    pub(super) rdzv_id: Option<OptionValue<String>>,
    /// Settings of the rendezvous, as in join_timeout=600,is_host=1
    #[arg(long, value_name = "K=V,…", help_heading = NODES)]
    pub(super) rdzv_conf: Option<OptionValue<String>>,
    /// One node, with a store on a free port: what a launch without options does. --rdzv-*, --master-addr and
    /// --master-port are ignored
    #[arg(long, help_heading = COMPATIBILITY)]
    pub(super) standalone: Option<OptionValue<Flag>>,
    /// How often the workers are started again after one has failed [default: 0]
    #[arg(long, value_name = "N", help_heading = RESTARTS)]
    pub(super) max_restarts: Option<OptionValue<i128>>,
    /// Accepted and checked, without effect: exits are noticed at once
    #[arg(long, value_name = "SECONDS", help_heading = COMPATIBILITY)]
    pub(super) monitor_interval: Option<OptionValue<f64>>,
    /// Accepted, without effect: every worker is a fresh process
    #[arg(long, help_heading = COMPATIBILITY)]
    pub(super) start_method: Option<OptionValue<StartMethod>>,
    /// Where torch's events go: nowhere, or to standard error as JSON lines; handlers of your own need Python [default:
    /// null]
    #[arg(long, value_name = "null|console", help_heading = COMPATIBILITY)]
    pub(super) event_log_handler: Option<OptionValue<String>>,
    /// The workers' role, as in ROLE_NAME and the log prefix [default: default]
    #[arg(long, value_name = "NAME", help_heading = COMPATIBILITY)]
    pub(super) role: Option<OptionValue<String>>,
    /// ENTRYPOINT is a Python module, run as `python -m`
    #[arg(short, long, help_heading = WORKERS)]
    pub(super) module: Option<OptionValue<Flag>>,
    /// ENTRYPOINT is a program; a name without a slash is looked up in PATH
    #[arg(long, help_heading = WORKERS)]
    pub(super) no_python: Option<OptionValue<Flag>>,
    /// Run ENTRYPOINT with Python's runpy.run_path, which records its errors; wins over --no-python and --module
    #[arg(long, help_heading = WORKERS)]
    pub(super) run_path: Option<OptionValue<Flag>>,
    /// Base of the log tree; /dev/null for none [default: a new folder in TMPDIR or /tmp, or in /dev/shm for error
    /// files alone]
    #[arg(long, value_name = "DIR", help_heading = OUTPUT, display_order = 1)]
    pub(super) log_dir: Option<OptionValue<OsString>>,
    /// Streams that go to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank as in
    /// 0:3,1:2 [default: 0]
    #[arg(short, long, value_name = "STREAMS", help_heading = OUTPUT)]
    pub(super) redirects: Option<OptionValue<String>>,
    /// Streams that go to files and, with a prefix, to the console; written as for --redirects [default: 0]
    #[arg(short, long, value_name = "STREAMS", help_heading = OUTPUT, display_order = 0)]
    pub(super) tee: Option<OptionValue<String>>,
    /// Prefix of tee'd lines, with ${role_name}, ${local_rank}, ${rank} and ${hostname} replaced [default:
    /// TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, then [${role_name}${local_rank}]:]
    #[arg(long, value_name = "TEMPLATE", help_heading = OUTPUT)]
    pub(super) log_line_prefix_template: Option<OptionValue<String>>,
    /// Local ranks whose output goes to the console, as in 0,2; files have all [default: all]
    #[arg(long, value_name = "RANKS", help_heading = OUTPUT)]
    pub(super) local_ranks_filter: Option<OptionValue<String>>,
    /// Copy tee'd stdout lines that contain one of these texts to filtered_stdout.log; commas between the texts, two
    /// for a literal one
    #[arg(long, value_name = "TEXTS", help_heading = OUTPUT)]
    pub(super) duplicate_stdout_filters: Option<OptionValue<String>>,
    /// The same for stderr, to filtered_stderr.log
    #[arg(long, value_name = "TEXTS", help_heading = OUTPUT)]
    pub(super) duplicate_stderr_filters: Option<OptionValue<String>>,
    /// Rank of this node, from 0, of a static rendezvous [default: 0]
    #[arg(long, value_name = "N", help_heading = NODES)]
    pub(super) node_rank: Option<OptionValue<i128>>,
    /// MASTER_ADDR: the node with rank 0 of a static rendezvous [default: 127.0.0.1]
    #[arg(long, value_name = "HOST", help_heading = NODES)]
    pub(super) master_addr: Option<OptionValue<String>>,
    /// The port of the store on the node with rank 0; for one node 0 is a free one. The run id is then `none` unless
    /// --rdzv-id is given [default: 29500 for several nodes]
    #[arg(long, value_name = "PORT", help_heading = NODES)]
    pub(super) master_port: Option<OptionValue<i128>>,
    /// The address by which the other nodes reach this one; it is MASTER_ADDR if the workers' store is on this
    /// node [default: 127.0.0.1 for one node]
    #[arg(long, value_name = "HOST", help_heading = NODES)]
    pub(super) local_addr: Option<OptionValue<String>>,
    /// Refused: it names a plug-in that only Python could load
    #[arg(long, value_name = "NAME", help_heading = COMPATIBILITY)]
    pub(super) logs_specs: Option<OptionValue<String>>,
    /// Bind each worker to CPUs near its accelerator: its NUMA node, its socket, its share of the node's cores, or one
    /// last-level cache [default: not bound]
    #[arg(long, help_heading = DEVICES)]
    pub(super) numa_binding: Option<OptionValue<NumaBinding>>,
    /// Signals to the launcher that stop the job; the workers get the same signal [default:
    /// SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(long, value_name = "SIGNALS", help_heading = STOPPING)]
    pub(super) signals_to_handle: Option<OptionValue<String>>,
    /// From the signal that stops the workers to SIGKILL [default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, then 30]
    #[arg(long, value_name = "SECONDS", help_heading = COMPATIBILITY)]
    pub(super) shutdown_timeout: Option<OptionValue<i128>>,
    /// Each worker sees one device of CUDA_VISIBLE_DEVICES (or HIP_VISIBLE_DEVICES) and has LOCAL_RANK=0
    #[arg(long, help_heading = COMPATIBILITY)]
    pub(super) virtual_local_rank: Option<OptionValue<Flag>>,
    /// Print a completion script for this shell and exit
    #[arg(long, help_heading = COMPATIBILITY)]
    pub(super) print_completion: Option<OptionValue<Shell>>,
}
