//! Reductions of elements, in the order of the ranks, so that all ranks come to the same bits. Pure.

use std::ffi::c_int;

use half::{bf16, f16};

/// `ncclRedOp_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReduceOp {
    Sum,
    Product,
    Max,
    Min,
    Mean,
}

impl ReduceOp {
    pub(crate) fn of(how: c_int) -> Option<Self> {
        [Self::Sum, Self::Product, Self::Max, Self::Min, Self::Mean].get(usize::try_from(how).ok()?).copied()
    }
}

/// Bytes of an element of a type of `ncclDataType_t`.
pub(crate) fn size(data_type: c_int) -> usize {
    match data_type {
        0 | 1 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        _ => 8,
    }
}

/// The reduction of the elements of all parts, which are equally long.
pub(crate) fn reduce(data_type: c_int, how: ReduceOp, parts: &[&[u8]]) -> Option<Vec<u8>> {
    macro_rules! whole {
        ($type:ty) => {
            fold(
                parts,
                |bytes| <$type>::from_ne_bytes(bytes),
                |a: $type, b| match how {
                    ReduceOp::Sum | ReduceOp::Mean => a.wrapping_add(b),
                    ReduceOp::Product => a.wrapping_mul(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                },
                |all| if how == ReduceOp::Mean { all / parts.len() as $type } else { all }.to_ne_bytes(),
            )
        };
    }
    macro_rules! float {
        ($type:ty, $wide:ty, $from:expr, $to:expr) => {
            fold(
                parts,
                |bytes| $from(<$type>::from_ne_bytes(bytes)),
                |a: $wide, b| match how {
                    ReduceOp::Sum | ReduceOp::Mean => a + b,
                    ReduceOp::Product => a * b,
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                },
                |all| $to(if how == ReduceOp::Mean { all / parts.len() as $wide } else { all }).to_ne_bytes(),
            )
        };
    }
    Some(match data_type {
        0 => whole!(i8),
        1 => whole!(u8),
        2 => whole!(i32),
        3 => whole!(u32),
        4 => whole!(i64),
        5 => whole!(u64),
        6 => float!(f16, f32, f16::to_f32, f16::from_f32),
        7 => float!(f32, f32, f32::from, f32::from),
        8 => float!(f64, f64, f64::from, f64::from),
        9 => float!(bf16, f32, bf16::to_f32, bf16::from_f32),
        _ => return None,
    })
}

fn fold<T: Copy, const N: usize>(
    parts: &[&[u8]],
    from: impl Fn([u8; N]) -> T,
    with: impl Fn(T, T) -> T,
    to: impl Fn(T) -> [u8; N],
) -> Vec<u8> {
    let Some((first, rest)) = parts.split_first() else { return Vec::new() };
    let element = |part: &[u8], at: usize| {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&part[at * N..][..N]);
        from(bytes)
    };
    let all = |at| rest.iter().fold(element(first, at), |all, part| with(all, element(part, at)));
    (0..first.len() / N).flat_map(|at| to(all(at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reduction_gives_expected_result() {
        let parts: Vec<Vec<u8>> = [[1.0_f32, -4.0], [3.0, 8.0]].iter().map(|part| bytes(part)).collect();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        for (how, expected) in
            [(0, [4.0, 4.0]), (1, [3.0, -32.0]), (2, [3.0, 8.0]), (3, [1.0, -4.0]), (4, [2.0, 2.0_f32])]
        {
            let how = ReduceOp::of(how).expect("it is one");
            assert_eq!(reduce(7, how, &parts), Some(bytes(&expected)), "{how:?}");
        }
        assert_eq!(ReduceOp::of(5), None);
        let whole: Vec<_> = [5_i64, 4].map(i64::to_ne_bytes).to_vec();
        let whole: Vec<&[u8]> = whole.iter().map(<[u8; 8]>::as_slice).collect();
        assert_eq!(reduce(4, ReduceOp::Mean, &whole), Some(4_i64.to_ne_bytes().to_vec()));
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }
}
