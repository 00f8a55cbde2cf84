//! A job of several hosts that one command starts over ssh: the hosts, what each of them is told, and what follows from
//! what they answer. Pure.
//!
//! | file | what it does |
//! |---|---|
//! | [`hosts`] | `--hosts` and `--hostfile` → hosts with their slots |
//! | [`plan`] | the words, variables and the command line of each host |
//! | [`protocol`] | the bytes between the local launcher and the agents of the hosts |
//! | [`supervision`] | what follows when an agent answers, ends or is silent |
//! | [`node_lines`] | the output of a host, with its name in front of each line |

pub mod hosts;
pub mod node_lines;
pub mod plan;
pub mod protocol;
pub mod supervision;
