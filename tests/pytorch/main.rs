//! Real PyTorch under the real launcher.

mod accelerate;
mod data_parallel;
mod ddp;
mod deepspeed;
mod early_exit;
mod external_worker;
mod frameworks;
mod hints;
mod mistakes;
mod nodes;
mod programs;
mod restart;
mod stops;
