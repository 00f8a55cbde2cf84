//! Our own options: valid beside torchrun's with and without the word `run`, never abbreviated, and unknown
//! under the name `torchrun`, where their `RANKRUN_*` variables still count.

use super::option::{Family, OptionRow};

pub(super) static STDIN: OptionRow = OptionRow::rank_or_word(
    "stdin",
    "RANK|all|none",
    "Which local rank reads the launcher's standard input [default: all]",
)
.family(Family::Rankrun);
pub(super) static GRACE: OptionRow = OptionRow::float(
    "grace",
    "SECONDS",
    "The same as --shutdown-timeout, and takes fractions; of the two, the last one given counts",
)
.family(Family::Rankrun);
pub(super) static VERBOSE: OptionRow = OptionRow::flag(
    "verbose",
    "Say more: -v what is done, -vv each step [default: LOGLEVEL, then warnings only]",
)
.short(b'v')
.family(Family::Rankrun);
pub(super) static LEAVE_OUT: OptionRow = OptionRow::int(
    "leave-out",
    "RANK",
    "Start all workers but this local rank, and say how to start that one by hand, as in a debugger",
)
.family(Family::Rankrun);
pub(super) static VERSION: OptionRow =
    OptionRow::flag("version", "Print the version and exit").family(Family::None);

/// Every option that torchrun does not know.
pub(super) const TABLE: &[&OptionRow] = &[&STDIN, &GRACE, &VERBOSE, &LEAVE_OUT, &VERSION];
