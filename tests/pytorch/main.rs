//! Real PyTorch under the real launcher.

mod ddp;
mod restart;
