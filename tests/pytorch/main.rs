//! Real PyTorch under the real launcher.

mod accelerate;
mod comparison;
mod data_parallel;
mod ddp;
mod deepspeed;
mod early_exit;
mod external_worker;
mod frameworks;
mod hangs;
mod hints;
mod mistakes;
mod nodes;
mod programs;
mod recordings;
mod restart;
mod slurm;
mod ssh;
mod stops;
