//! Real PyTorch under the real launcher.

mod by_hand;
mod ddp;
mod frameworks;
mod nodes;
mod programs;
mod restart;
