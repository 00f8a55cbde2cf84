//! The control socket of a running job, and the commands that use it.
//!
//! | file | what it does | pure |
//! |---|---|---|
//! | `protocol` | the lines of both sides | yes |
//! | `lookup` | which job a person means | yes |
//! | `folder` | where the socket is, and what is left of dead jobs | no |
//! | `server` | answers clients, as a future that owns no job state | no |
//! | `endpoint` | the agent's end: requests in, replies and events out | no |
//! | `snapshot` | what the agent knows at one moment, completed from `/proc` without the agent | no |
//! | `socket` | the client's end | no |
//! | `command` | `rankrun ls`, `status`, `stop`, `restart` | no |
//! | `pages` | what they print | yes |

pub mod command;
pub mod endpoint;
pub mod folder;
pub mod lookup;
mod pages;
pub mod protocol;
mod server;
pub mod snapshot;
mod socket;
