//! Hints under the name torchrun.

use crate::cli::device_request::as_variables;

#[test]
fn torchrun_hints_name_variables_for_rankrun_options() {
    for (hint, said) in [
        ("more with `--probe-timeout SECONDS`", "more with `RANKRUN_PROBE_TIMEOUT=SECONDS`"),
        ("`--nproc-per-node N` or `--device-type cpu`", "`--nproc-per-node N` or `RANKRUN_DEVICE_TYPE=cpu`"),
        ("`--exclude-unhealthy` goes on", "`RANKRUN_EXCLUDE_UNHEALTHY=1` goes on"),
        ("`--device-type cuda --devices 1,2`", "`RANKRUN_DEVICE_TYPE=cuda RANKRUN_DEVICES=1,2`"),
        ("without `--devices` and `--device-order`", "without `RANKRUN_DEVICES` and `RANKRUN_DEVICE_ORDER`"),
        ("`rankrun devices` shows them", "`rankrun devices` shows them"),
    ] {
        assert_eq!(as_variables(hint), said);
    }
}
