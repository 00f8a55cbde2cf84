//! nccl-tests' table: its arithmetic, and its text or JSON. Pure.

use clap::ValueEnum;
use rankrun_worker::process_group::Backend;

use crate::{Operation, Options};

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Text,
    Json,
}

/// The result for one size.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// Bytes over the parts of all ranks.
    pub(crate) size: usize,
    /// Elements of one rank's part.
    pub(crate) count: usize,
    /// Mean time of a call in microseconds.
    pub(crate) micros: f64,
    /// Share of the size that crosses each rank's link.
    pub(crate) factor: f64,
    /// Wrong elements on all ranks.
    pub(crate) wrong: u64,
}

impl Row {
    /// Size by time, in 10⁹ bytes per second.
    fn algorithm_bandwidth(&self) -> f64 {
        if self.micros > 0.0 { self.size as f64 / self.micros / 1e3 } else { 0.0 }
    }

    fn bus_bandwidth(&self) -> f64 {
        self.algorithm_bandwidth() * self.factor
    }
}

/// Least share of the size that crosses each rank's link: nccl-tests' `PERFORMANCE.md`.
pub(crate) fn bus_factor(operation: Operation, world: u32) -> f64 {
    let world = f64::from(world);
    match operation {
        Operation::AllReduce => 2.0 * (world - 1.0) / world,
        Operation::AllGather | Operation::ReduceScatter => (world - 1.0) / world,
        Operation::Broadcast | Operation::Reduce => 1.0,
    }
}

/// The lines above the rows.
pub(crate) fn head(style: Style, backend: Backend, world: u32) -> Vec<String> {
    match style {
        Style::Text => vec![
            format!("# backend {backend}, {world} ranks"),
            format!(
                "#{:>11}  {:>12}  {:>6}  {:>6}  {:>5}  {:>11}  {:>7}  {:>7}  {:>6}",
                "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"
            ),
            format!(
                "#{:>11}  {:>12}  {:>6}  {:>6}  {:>5}  {:>11}  {:>7}  {:>7}",
                "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)"
            ),
        ],
        Style::Json => vec![format!(r#"{{"backend":"{backend}","ranks":{world}}}"#)],
    }
}

/// One row.
pub(crate) fn line(style: Style, options: &Options, row: &Row) -> String {
    let name = |value: Option<clap::builder::PossibleValue>| {
        value.map_or_else(String::new, |known| known.get_name().to_owned())
    };
    let data_type = name(options.data_type.to_possible_value());
    let (redop, root) = match options.operation {
        Operation::AllReduce | Operation::ReduceScatter => (name(options.redop.to_possible_value()), -1),
        Operation::Reduce => (name(options.redop.to_possible_value()), 0),
        Operation::Broadcast => ("none".to_owned(), 0),
        Operation::AllGather => ("none".to_owned(), -1),
    };
    let Row { size, count, micros, wrong, .. } = row;
    let (algorithm, bus) = (row.algorithm_bandwidth(), row.bus_bandwidth());
    match style {
        Style::Text => format!(
            "{size:>12}  {count:>12}  {data_type:>6}  {redop:>6}  {root:>5}  {micros:>11.2}  {algorithm:>7.2}  {bus:>7.2}  {wrong:>6}"
        ),
        Style::Json => format!(
            r#"{{"size":{size},"count":{count},"type":"{data_type}","redop":"{redop}","root":{root},"time_us":{micros:.3},"algbw_gbs":{algorithm:.4},"busbw_gbs":{bus:.4},"wrong":{wrong}}}"#
        ),
    }
}

/// The line below the rows.
pub(crate) fn end(style: Style, rows: &[Row]) -> String {
    let mean = rows.iter().map(Row::bus_bandwidth).sum::<f64>() / rows.len().max(1) as f64;
    match style {
        Style::Text => format!("# Avg bus bandwidth    : {mean:.4}"),
        Style::Json => format!(r#"{{"avg_busbw_gbs":{mean:.4}}}"#),
    }
}

/// Compares two runs: the ratio of the second time to the first.
pub(crate) fn comparison(
    style: Style,
    (first, second): (Backend, Backend),
    (with, without): (&[Row], &[Row]),
) -> Vec<String> {
    let name = |backend, other: &'static str| match backend {
        Backend::Nccl => other.to_owned(),
        backend => backend.to_string(),
    };
    let (first, second) = (name(first, "p2p"), name(second, "no-p2p"));
    let pairs = with.iter().zip(without).map(|(with, without)| {
        let ratio = if with.micros > 0.0 { without.micros / with.micros } else { 0.0 };
        match style {
            Style::Text => {
                format!("{:>12}  {:>11.2}  {:>11.2}  {ratio:>7.2}", with.size, with.micros, without.micros)
            }
            Style::Json => format!(
                r#"{{"size":{},"{first}_us":{:.3},"{second}_us":{:.3},"ratio":{ratio:.3}}}"#,
                with.size, with.micros, without.micros
            ),
        }
    });
    let head = match style {
        Style::Text => vec![
            format!("#{:>11}  {first:>11}  {second:>11}  {:>7}", "size", "ratio"),
            format!("#{:>11}  {:>11}  {:>11}", "(B)", "(us)", "(us)"),
        ],
        Style::Json => Vec::new(),
    };
    head.into_iter().chain(pairs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn row() -> Row {
        Row { size: 4_000_000, count: 1_000_000, micros: 1000.0, factor: 1.5, wrong: 0 }
    }

    #[test]
    fn bandwidths_match_nccl_tests() {
        let row = row();
        assert!((row.algorithm_bandwidth() - 4.0).abs() < 1e-9 && (row.bus_bandwidth() - 6.0).abs() < 1e-9);
        let factors = |world| {
            [Operation::AllReduce, Operation::AllGather, Operation::ReduceScatter, Operation::Broadcast]
                .map(|operation| bus_factor(operation, world))
        };
        assert_eq!(factors(4), [1.5, 0.75, 0.75, 1.0]);
        assert_eq!(factors(1), [0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn row_format_matches_nccl_tests() {
        let options = Options::parse_from(["allreduce_bench", "--operation", "reduce", "--redop", "max"]);
        assert_eq!(
            line(Style::Text, &options, &row()),
            "     4000000       1000000     f32     max      0      1000.00     4.00     6.00       0"
        );
        assert_eq!(
            line(Style::Json, &options, &row()),
            r#"{"size":4000000,"count":1000000,"type":"f32","redop":"max","root":0,"time_us":1000.000,"algbw_gbs":4.0000,"busbw_gbs":6.0000,"wrong":0}"#
        );
        assert_eq!(end(Style::Text, &[row(), row()]), "# Avg bus bandwidth    : 6.0000");
    }

    #[test]
    fn comparison_has_the_ratio_of_times() {
        let slow = Row { micros: 2500.0, ..row() };
        let lines =
            comparison(Style::Text, (Backend::Nccl, Backend::Nccl), (&[row()], std::slice::from_ref(&slow)));
        assert_eq!(lines[0], "#       size          p2p       no-p2p    ratio");
        assert_eq!(lines[2], "     4000000      1000.00      2500.00     2.50");
        let lines = comparison(Style::Json, (Backend::Shm, Backend::Tcp), (&[row()], &[slow]));
        assert_eq!(lines, [r#"{"size":4000000,"shm_us":1000.000,"tcp_us":2500.000,"ratio":2.500}"#]);
    }
}
