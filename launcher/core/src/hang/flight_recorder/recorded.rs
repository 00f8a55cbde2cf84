//! Answers of real gloo jobs with three ranks: `recorded/record.py` makes them.

macro_rules! traces {
    ($scenario:literal) => {
        [
            include_bytes!(concat!("recorded/", $scenario, "-0.json")).as_slice(),
            include_bytes!(concat!("recorded/", $scenario, "-1.json")),
            include_bytes!(concat!("recorded/", $scenario, "-2.json")),
        ]
    };
}

/// The answer of this rank in one of the scenarios of `record.py`.
pub(in crate::hang) fn trace(scenario: &str, rank: usize) -> &'static [u8] {
    let traces = match scenario {
        "missing" => traces!("missing"),
        "names" => traces!("names"),
        "sizes" => traces!("sizes"),
        "subgroup" => traces!("subgroup"),
        "done" => traces!("done"),
        _ => panic!("no scenario `{scenario}`"),
    };
    traces[rank]
}

/// The trace of this rank in the scenario `missing`, as PyTorch writes it into a dump file.
pub(in crate::hang) fn dump(rank: usize) -> &'static [u8] {
    [
        include_bytes!("recorded/missing-0.pickle").as_slice(),
        include_bytes!("recorded/missing-1.pickle"),
        include_bytes!("recorded/missing-2.pickle"),
    ][rank]
}
