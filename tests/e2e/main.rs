//! The real launcher with real workers, one behaviour per test.
//!
//! Rows of the torchrun contract run under both names, or under torchrun's alone; with `RANKRUN_E2E_ORACLE=1` the
//! real torchrun takes that place. What torchrun 2.15 itself fails begins with [`harness::only_ours`].

mod bad_input;
mod bad_workers;
mod collectives;
mod command_line;
mod config;
mod console;
mod contract;
mod devices;
mod differences;
mod endurance;
mod environment;
mod error_files;
mod events;
mod everybody;
mod executables;
mod exits;
mod explain;
mod gc;
mod guide;
mod install;
mod job_control;
mod leave_out;
mod leftovers;
mod limits;
mod locked_down;
mod logs;
mod long_messages;
mod nesting;
mod nodes;
mod options;
mod orphans;
mod output;
mod pid_one;
mod ports_and_names;
mod reports;
mod restart_policy;
mod restarts;
mod root_cause;
mod rust_examples;
mod rust_failures;
mod rust_training;
mod schedulers;
mod siblings;
mod signals;
mod special_files;
mod stdin;
mod stop_times;
mod store_abuse;
mod store_limits;
mod summary;
mod terminal;
mod text_direction;
mod watch;
