//! The shells of the rankrun launcher: processes, sockets, files and the terminal, around the decisions of `rankrun-core`.
//!
//! | room | what it does |
//! |---|---|
//! | [`agent`] | the loop: the only owner of the job's state; performs its actions |
//! | [`blocking`] | calls that may never return, off the loops |
//! | [`console`] | the only writer of the terminal |
//! | [`control`] | the control socket of a running job |
//! | [`device_probe`] | asks vendors' libraries and the kernel for accelerators |
//! | [`error`] | errors of the launcher itself |
//! | [`hang`] | collects what the workers show of their progress |
//! | [`hooks`] | the file that Python runs first in each worker |
//! | `io_thread` | a thread with a tokio runtime, for all that waits for sockets |
//! | [`logs`] | the workers' output |
//! | [`process`] | the only place that forks, signals and waits |
//! | [`program`] | finds a program as `execvp` does |
//! | [`regular_file`] | opens regular files, and refuses all others |
//! | [`rendezvous`] | the connections to the agents of other nodes |
//! | [`report_file`] | writes the file of `--report` |
//! | [`reporter`] | every message to the user |
//! | [`ssh`] | agents on other hosts, started by the system's ssh client |
//! | `stacks` | takes the stacks of running workers |
//! | [`store`] | the key-value store of workers and agents |
//! | [`system`] | the real machine, asked through the kernel |

pub mod agent;
pub mod blocking;
pub mod console;
pub mod control;
pub mod device_probe;
pub mod error;
pub mod hang;
pub mod hooks;
pub(crate) mod io_thread;
pub mod logs;
pub mod process;
pub mod program;
pub mod regular_file;
pub mod rendezvous;
pub mod report_file;
pub mod reporter;
pub mod ssh;
pub mod stacks;
pub mod store;
pub mod system;
