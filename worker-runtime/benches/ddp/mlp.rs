//! The model of the bench: an MLP 1000-512-512-2 with ReLU and cross entropy, with gradients by hand. Data and first weights are
//! formulas, the same as in `torch_ddp.py`.

use std::ops::Range;

use rankrun_worker::ddp::{Ddp, DdpError, Gradients, Parameter};

/// Numbers that describe a sample, the widths of the hidden layers, and classes.
pub(crate) const SIZES: [usize; 4] = [1000, 512, 512, 2];
/// Samples in all; they begin anew after the last one.
pub(crate) const SAMPLES: usize = 1024;

const RATE: f32 = 0.01;

/// A number between 0 and 1 that looks like none in particular (Knuth's multiplicative hash).
fn number(at: usize) -> f64 {
    f64::from((at as u32).wrapping_mul(2_654_435_761)) / f64::from(u32::MAX)
}

/// All samples, row by row.
pub(crate) fn samples() -> Vec<f32> {
    (0..SAMPLES * SIZES[0]).map(|at| (number(at + 1) - 0.5) as f32).collect()
}

/// A matrix by the strides of its rows and columns.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    values: &'a [f32],
    strides: [usize; 2],
}

/// As it lies, row by row.
fn plain(values: &[f32], columns: usize) -> Matrix<'_> {
    Matrix { values, strides: [columns, 1] }
}

/// With rows for columns.
fn transposed(values: &[f32], columns: usize) -> Matrix<'_> {
    Matrix { values, strides: [1, columns] }
}

/// `product = left · right`, of which `shape` is rows, terms and columns.
fn multiply(shape: [usize; 3], left: Matrix<'_>, right: Matrix<'_>, product: &mut [f32]) {
    let [rows, terms, columns] = shape;
    assert!(left.values.len() == rows * terms && right.values.len() == terms * columns);
    assert!(product.len() == rows * columns);
    let stride = |matrix: Matrix<'_>| matrix.strides.map(usize::cast_signed);
    let ([left_row, left_column], [right_row, right_column]) = (stride(left), stride(right));
    // SAFETY: the slices have as many numbers as the shape says, and strides stay within them: those of a plain matrix or of a
    // transposed one.
    #[expect(unsafe_code, reason = "the crate takes pointers")]
    unsafe {
        matrixmultiply::sgemm(
            rows,
            terms,
            columns,
            1.0,
            left.values.as_ptr(),
            left_row,
            left_column,
            right.values.as_ptr(),
            right_row,
            right_column,
            0.0,
            product.as_mut_ptr(),
            columns.cast_signed(),
            1,
        );
    }
}

pub(crate) struct Mlp {
    /// Weight and bias of each layer in turn.
    pub(crate) parameters: Vec<Vec<f32>>,
    /// Outputs of all layers, and then gradients of them, for as many rows as the last batch had.
    outputs: Vec<Vec<f32>>,
    slopes: Vec<Vec<f32>>,
}

impl Mlp {
    pub(crate) fn new() -> Self {
        let mut parameters = Vec::new();
        for pair in SIZES.windows(2) {
            let bound = (pair[0] as f64).sqrt().recip();
            let weight = |at: usize| ((number(at + 7) - 0.5) * 2.0 * bound) as f32;
            parameters.push((0..pair[0] * pair[1]).map(weight).collect());
            parameters.push(vec![0.0; pair[1]]);
        }
        Self { parameters, outputs: vec![Vec::new(); 3], slopes: vec![Vec::new(); 3] }
    }

    pub(crate) fn description() -> Vec<Parameter> {
        let layer = |(at, pair): (usize, &[usize])| {
            let name = |what| format!("fc{}.{what}", at + 1);
            let weight = Parameter::new::<f32>(name("weight"), &[pair[1], pair[0]]);
            [weight, Parameter::new::<f32>(name("bias"), &[pair[1]])]
        };
        SIZES.windows(2).enumerate().flat_map(layer).collect()
    }

    /// The mean loss over some samples; gradients go to `ddp` as they become known.
    pub(crate) fn learn(&mut self, data: &[f32], rows: Range<usize>, ddp: &mut Ddp) -> Result<f64, DdpError> {
        let input = &data[rows.start * SIZES[0]..rows.end * SIZES[0]];
        self.forward(input, rows.len());
        let loss = self.score(&rows);
        for layer in (0..3).rev() {
            let (inputs, outputs, count) = (SIZES[layer], SIZES[layer + 1], rows.len());
            let (below, own) = self.slopes.split_at_mut(layer);
            let slopes = &own[0];
            let values = if layer == 0 { input } else { &self.outputs[layer - 1] };

            let bias = ddp.gradient_mut::<f32>(2 * layer + 1)?;
            slopes.chunks_exact(outputs).for_each(|row| add(bias, row));
            ddp.mark_ready(2 * layer + 1)?;
            let weight = ddp.overwrite_gradient::<f32>(2 * layer)?;
            let (left, right) = (transposed(slopes, outputs), plain(values, inputs));
            multiply([outputs, count, inputs], left, right, weight);
            ddp.mark_ready(2 * layer)?;

            if let Some(below) = below.last_mut() {
                below.resize(count * inputs, 0.0);
                let weight = plain(&self.parameters[2 * layer], inputs);
                multiply([count, outputs, inputs], plain(slopes, outputs), weight, below);
                // What ReLU has cut off has no slope.
                let cut = below.iter_mut().zip(values);
                cut.for_each(|(slope, value)| *slope = if *value > 0.0 { *slope } else { 0.0 });
            }
        }
        Ok(loss)
    }

    fn forward(&mut self, input: &[f32], count: usize) {
        for layer in 0..3 {
            let (inputs, outputs) = (SIZES[layer], SIZES[layer + 1]);
            let (below, own) = self.outputs.split_at_mut(layer);
            let values = below.last().map_or(input, |values| values);
            own[0].resize(count * outputs, 0.0);
            let weight = transposed(&self.parameters[2 * layer], inputs);
            multiply([count, inputs, outputs], plain(values, inputs), weight, &mut own[0]);
            let bias = &self.parameters[2 * layer + 1];
            for row in own[0].chunks_exact_mut(outputs) {
                add(row, bias);
                if layer < 2 {
                    row.iter_mut().for_each(|value| *value = value.max(0.0));
                }
            }
        }
    }

    /// The mean loss; the slopes of the last layer's outputs become those of the loss.
    fn score(&mut self, rows: &Range<usize>) -> f64 {
        let mut loss = 0.0;
        self.slopes[2].clone_from(&self.outputs[2]);
        for (row, sample) in self.slopes[2].chunks_exact_mut(SIZES[3]).zip(rows.clone()) {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter_mut().for_each(|output| *output = (*output - most).exp());
            let sum: f32 = row.iter().sum();
            let class = sample % SIZES[3];
            loss -= f64::from((row[class] / sum).ln());
            row.iter_mut().for_each(|power| *power /= sum * rows.len() as f32);
            row[class] -= 1.0 / rows.len() as f32;
        }
        loss / rows.len() as f64
    }

    /// Takes a step against the gradients.
    pub(crate) fn descend(&mut self, gradients: &Gradients<'_>) {
        for (weights, gradient) in self.parameters.iter_mut().zip(gradients.iter::<f32>()) {
            weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= RATE * slope);
        }
    }
}

fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}
