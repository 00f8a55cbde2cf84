//! The commands of rankrun beside a launch: `devices`, `topo`, `explain`, `gc`, `shim`, `ls`, `status`, `stacks`, `stop`,
//! `restart`.
//!
//! | room | what it does |
//! |---|---|
//! | [`control`] | `ls`, `status`, `stacks`, `stop`, `restart`: ask running jobs |
//! | [`explain`] | the plan of a launch, without its effects |
//! | [`inspect`] | `devices` and `topo` |
//! | [`litter`] | finds and removes leftover files and folders |
//! | [`shim`] | makes rankrun the launcher of a Python environment, and back |

pub mod control;
pub mod explain;
pub mod inspect;
pub mod litter;
pub mod shim;
