"""The rules of single aggregates: decisions, folds and views, one module each."""
