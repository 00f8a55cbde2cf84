//! The control socket of a running job. The commands that use it are in the crate `rankrun-tools`.
//!
//! | file | what it does | pure |
//! |---|---|---|
//! | `protocol` | the lines of both sides | yes |
//! | `folder` | where the socket is, and what is left of dead jobs | no |
//! | `server` | answers clients, as a future that owns no job state | no |
//! | `endpoint` | the agent's end: requests in, replies and events out | no |
//! | `snapshot` | what the agent knows at one moment, completed from `/proc` without the agent | no |

pub(crate) mod endpoint;
pub mod folder;
pub mod protocol;
mod server;
pub(crate) mod snapshot;
