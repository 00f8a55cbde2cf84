//! Real PyTorch under the real launcher.

mod ddp;
mod frameworks;
mod programs;
mod restart;
