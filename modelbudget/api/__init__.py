"""What `import modelbudget` offers: models, predictions, measurements, results as records."""
