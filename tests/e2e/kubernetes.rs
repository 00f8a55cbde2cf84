//! The manifests of `deploy/kubernetes`: what they say fits together and fits the launcher, and hosts with the environment of
//! their pods are one job.

mod manifest;
mod pods;
mod policies;

use manifest::Pod;
