//! Measures the collectives of a process group; prints the table of nccl-tests for any backend.
//!
//! - `main.rs` has the flags and the control flow; `ranks.rs` joins the group; `sweep.rs` makes and times the calls; `host.rs` and `device.rs` hold host and GPU memory, `value.rs` its values and the expected results.
//! - `table.rs` has the arithmetic and the text; `size.rs` parses sizes; `second_run.rs` runs the program a second time.

mod device;
mod host;
mod ranks;
mod second_run;
mod size;
mod sweep;
mod table;
mod value;

use std::io;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use rankrun_examples::console::{self, OutputError};
use rankrun_worker::cuda::CudaError;
use rankrun_worker::process_group::{Backend, BackendChoice};
use rankrun_worker::{Device, GroupError, Rank, ReduceOp, WorkerContext};
use ranks::Ranks;
use second_run::FirstRun;
use size::Size;
use table::{Row, Style};

/// The rank that prints.
const ROOT: Rank = Rank(0);

/// Measures a collective for growing sizes and checks its results. Rank 0 prints a table as nccl-tests does.
///
/// `time` is the mean of a call over all ranks, `algbw` the size divided by the time, and `busbw` that times
/// the share of the data that crosses each rank's link, which makes it comparable between numbers of ranks.
/// GB are 10⁹ bytes. `#wrong` counts wrong elements on all ranks; any is an error.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  rankrun --nproc-per-node 2 allreduce_bench                          two ranks, the fastest backend
  rankrun --nproc-per-node 4 allreduce_bench --backend tcp --max 1M   four ranks over TCP
  rankrun --nproc-per-node 8 allreduce_bench --operation all_gather --type bf16 --json
  rankrun --nproc-per-node 2 allreduce_bench --backend shm --compare  what shared memory gains over TCP
  rankrun --nproc-per-node gpu allreduce_bench --backend nccl --compare
                                                                      what NVLink or PCIe peer-to-peer gains")]
struct Options {
    /// Backend of the group; default: RANKRUN_BACKEND or `auto`. `mixed` is shared memory on each of
    /// several hosts and TCP between them.
    #[arg(long, value_enum)]
    backend: Option<Carrier>,
    /// Smallest size in bytes; K, M and G are powers of 1024. After 0 comes 8.
    #[arg(long, default_value = "8", value_name = "SIZE")]
    min: Size,
    /// Largest size in bytes.
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    max: Size,
    /// Factor between two sizes.
    #[arg(long, default_value_t = 4, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
    /// Number of timed calls.
    #[arg(long, default_value_t = 20, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Number of warm-up calls.
    #[arg(long, default_value_t = 5, value_name = "CALLS")]
    warmup: u32,
    /// Operation to measure.
    #[arg(long, value_enum, default_value_t = Operation::AllReduce)]
    operation: Operation,
    /// Element type of the data.
    #[arg(long = "type", value_enum, default_value_t = Type::F32)]
    data_type: Type,
    /// Reduce operation.
    #[arg(long, value_enum, default_value_t = Redop::Sum)]
    redop: Redop,
    /// Owner of the buffers: those of the group need the fewest copies. On GPUs the program owns them.
    #[arg(long, value_enum, default_value_t = Owner::Group)]
    memory: Owner,
    /// Measure again without the backend's fast path and print the ratio: `nccl` with NCCL_P2P_DISABLE=1,
    /// `shm` and `mixed` over TCP. Every rank executes the program again.
    #[arg(long)]
    compare: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Carrier {
    Auto,
    Shm,
    Tcp,
    Mixed,
    Nccl,
}

impl From<BackendChoice> for Carrier {
    fn from(choice: BackendChoice) -> Self {
        match choice {
            BackendChoice::Auto => Self::Auto,
            BackendChoice::Shm => Self::Shm,
            BackendChoice::Tcp => Self::Tcp,
            BackendChoice::Nccl => Self::Nccl,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
}

impl Operation {
    /// Elements of input and output for `count` elements per part; equal if the call is in place.
    fn lengths(self, world: u32, count: usize) -> (usize, usize) {
        let all = count * world as usize;
        match self {
            Self::AllReduce | Self::Broadcast | Self::Reduce => (0, count),
            Self::AllGather => (count, all),
            Self::ReduceScatter => (all, count),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Type {
    F16,
    Bf16,
    F32,
    F64,
    I32,
    I64,
    U8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Owner {
    Group,
    Program,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Redop {
    Sum,
    Prod,
    Min,
    Max,
    Avg,
}

impl From<Redop> for ReduceOp {
    fn from(redop: Redop) -> Self {
        match redop {
            Redop::Sum => Self::Sum,
            Redop::Prod => Self::Product,
            Redop::Min => Self::Min,
            Redop::Max => Self::Max,
            Redop::Avg => Self::Mean,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(
        "the backend `nccl` needs a CUDA device, and the launcher gives this worker `{device}`; start it with `--device-type cuda`"
    )]
    NotCuda { device: Device },
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("`--min {min}` is more than `--max {max}`")]
    Sizes { min: Size, max: Size },
    #[error("this machine has not enough memory for `--max {max}`; choose a smaller one")]
    NoMemory { max: Size },
    #[error(
        "the backend `mixed` is for ranks on several hosts, and these have `{backend}`; choose `auto` or `shm`"
    )]
    NotMixed { backend: Backend },
    #[error(
        "`--compare` has nothing to compare: `{backend}` has no faster path; choose `--backend nccl`, `shm` or `mixed`"
    )]
    NothingToCompare { backend: Backend },
    #[error(
        "`--compare` has nothing to compare: NCCL_P2P_DISABLE is set for the first run already; unset it"
    )]
    AlreadyDisabled,
    #[error("cannot start this program again in its place")]
    Again(#[source] io::Error),
    #[error("{wrong} elements are wrong")]
    Wrong { wrong: u64 },
}

fn main() -> ExitCode {
    let options = Options::parse();
    rankrun_worker::run(|context| bench(&options, context))
}

fn bench(options: &Options, context: &WorkerContext) -> Result<(), BenchError> {
    if options.min > options.max {
        return Err(BenchError::Sizes { min: options.min, max: options.max });
    }
    check_memory(options.max)?;
    let first = if options.compare { second_run::load_first_run() } else { None };
    let mut ranks = Ranks::join(options, context, first.is_some())?;
    let backend = ranks.group.backend();
    if options.compare && first.is_none() {
        second_run::check(backend)?;
    }
    let rows = run(options, &mut ranks)?;
    let is_root = ranks.group.rank() == ROOT;
    let wrong = rows.iter().map(|row| row.wrong).sum();
    if wrong > 0 {
        return Err(BenchError::Wrong { wrong });
    }
    match first {
        None if options.compare => {
            let first = FirstRun { backend, rows };
            // This rank may exit only after that.
            ranks.control().barrier()?;
            ranks.leave();
            Err(BenchError::Again(second_run::run_again(&first)))
        }
        Some(first) if is_root => {
            let lines = table::comparison(options.style(), (first.backend, backend), (&first.rows, &rows));
            Ok(lines.iter().try_for_each(|line| console::line(line))?)
        }
        _ => Ok(()),
    }
}

/// Refuses a size that the kernel cannot give: the process would end without naming the option.
fn check_memory(max: Size) -> Result<(), BenchError> {
    let mut memory = Vec::<u8>::new();
    let result = memory.try_reserve_exact(max.0).map_err(|_| BenchError::NoMemory { max });
    // Otherwise the compiler may drop an allocation without a use.
    std::hint::black_box(&memory);
    result
}

/// Measures all sizes, and prints them on rank 0.
fn run(options: &Options, ranks: &mut Ranks) -> Result<Vec<Row>, BenchError> {
    let is_root = ranks.group.rank() == ROOT;
    let print = |text: &str| if is_root { console::line(text) } else { Ok(()) };
    let style = options.style();
    for line in table::head(style, ranks.group.backend(), ranks.group.world_size().get()) {
        print(&line)?;
    }
    let mut rows = Vec::new();
    for bytes in size::sizes(options.min, options.max, options.factor) {
        let row = sweep::measure(options, ranks, bytes)?;
        print(&table::line(style, options, &row))?;
        rows.push(row);
    }
    print(&table::end(style, &rows))?;
    Ok(rows)
}

impl Options {
    /// The backend of the option, else that of the environment.
    fn carrier(&self, context: &WorkerContext) -> Carrier {
        self.backend.or_else(|| context.backend().map(Carrier::from)).unwrap_or(Carrier::Auto)
    }

    fn style(&self) -> Style {
        if self.json { Style::Json } else { Style::Text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn size_above_memory_is_error_naming_option() {
        assert!(check_memory(Size(64 << 20)).is_ok());
        // More than an address space.
        let error = check_memory(Size(1 << 60)).unwrap_err().to_string();
        assert_eq!(error, "this machine has not enough memory for `--max 1073741824G`; choose a smaller one");
    }

    #[test]
    fn flags_are_consistent() {
        Options::command().debug_assert();
    }
}
