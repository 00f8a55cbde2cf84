//! Workers that behave badly.
