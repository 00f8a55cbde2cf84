//! Real PyTorch under the real launcher.

mod by_hand;
mod ddp;
mod early_exit;
mod frameworks;
mod hints;
mod mistakes;
mod nodes;
mod programs;
mod restart;
